"""Samples as lines of a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from gputui.agent.recording.file_output import KEPT_FILES, FileOutput, RotatedFile
from gputui.gpu.model import FastTick, GpuEvent, GpuProcess, GpuSample, GpuSlowSample, ProcessTick, SlowTick
from gputui.store.series import HostSample

NOW = 1_790_000_000.5
INDICES = {"GPU-a": 0, "GPU-b": 1}
MESSAGES = [
    FastTick(
        NOW, (GpuSample("GPU-a", power_watts=300.5, throttle_reasons=("power cap", "thermal")), GpuSample("GPU-b"))
    ),
    SlowTick(NOW, (GpuSlowSample("GPU-b", energy_joules=12.5),)),
    HostSample(NOW, cpu_percent=3.5),
    ProcessTick(NOW, {"GPU-a": (GpuProcess(1, command="secret"),)}),
    GpuEvent(NOW + 1, "GPU-b", "xid", 79, 'fell, "off"'),
]


def written(path: Path, form: str) -> None:
    output = FileOutput(path, form, None)  # type: ignore[arg-type]
    output.start()
    output.take(MESSAGES, INDICES)
    output.close()


def test_ndjson(tmp_path: Path) -> None:
    path = tmp_path / "samples.ndjson"
    written(path, "ndjson")
    first, second, slow, host, event = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["kind"], first["gpu"], first["power_watts"]) == ("gpu", 0, 300.5)
    assert first["time"] == "2026-09-21T14:13:20.500Z"
    assert second["power_watts"] is None
    assert (slow["kind"], slow["gpu"], slow["energy_joules"]) == ("gpu_slow", 1, 12.5)
    assert (host["kind"], host["cpu_percent"]) == ("host", 3.5)
    assert (event["kind"], event["code"], event["at"]) == ("gpu_event", 79, NOW + 1)
    assert path.stat().st_mode & 0o777 == 0o600


def test_csv_is_one_table(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    written(path, "csv")
    written(path, "csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["gpu", "gpu", "gpu_slow", "host", "gpu_event"] * 2
    assert (rows[0]["throttle_reasons"], rows[1]["power_watts"], rows[4]["text"]) == (
        "power cap;thermal",
        "",
        'fell, "off"',
    )


def test_a_file_is_begun_anew_when_it_is_large_and_ten_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    file = RotatedFile(path, 100, b"head\n")
    for number in range(400):
        file.write(f"line {number:5}\n".encode())
    file.close()
    kept = [path, *(tmp_path / f"samples.csv.{number}" for number in range(1, KEPT_FILES + 1))]
    assert sorted(tmp_path.glob("samples*")) == sorted(kept)
    assert all(one.read_text().startswith("head\n") and one.stat().st_size <= 111 for one in kept)
    numbers = [int(line[5:]) for one in reversed(kept) for line in one.read_text().splitlines()[1:]]
    assert numbers == list(range(numbers[0], 400))


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "samples.ndjson"
    path.write_text('{"kind": "g')
    written(path, "ndjson")
    lines = path.read_text().splitlines()
    assert lines[0] == '{"kind": "g' and all(json.loads(line) for line in lines[1:])


def test_a_table_of_other_columns_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("a,b\n1,2\n")
    written(path, "csv")
    assert (tmp_path / "samples.csv.1").read_text() == "a,b\n1,2\n"


def test_a_file_that_cannot_be_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileOutput(tmp_path / "nowhere" / "samples.csv", "csv", None).start()


def test_what_a_full_disk_tore_is_ended_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "samples.ndjson"
    file = RotatedFile(path, None)
    file.write(b"one\n")
    monkeypatch.setattr("gputui.agent.recording.file_output.os.write", _full_after(2))
    with pytest.raises(OSError, match="No space"):
        file.write(b"two\n")
    monkeypatch.undo()
    file.write(b"three\n")
    file.close()
    assert path.read_text() == "one\ntw\nthree\n"


def _full_after(count: int):  # type: ignore[no-untyped-def]
    import os

    real, left = os.write, [count]

    def write(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        done = real(descriptor, data[: left[0]])
        left[0] -= done
        return done

    return write
