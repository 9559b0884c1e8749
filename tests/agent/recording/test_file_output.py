"""Samples as lines of a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from gputui.agent.recording.output import KEPT_FILES, FileOutput, RotatedFile
from gputui.machine.gpu_model import FastTick, GpuEvent, GpuProcess, ProcessTick, SlowTick
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

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
    output = FileOutput(path, form, rotate_bytes=None)  # type: ignore[arg-type]
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
    values = rows[0]["throttle_reasons"], rows[1]["power_watts"], rows[4]["text"]
    assert values == ("power cap;thermal", "", 'fell, "off"')


def test_a_file_is_begun_anew_when_it_is_large_and_ten_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    file = RotatedFile(path, 100, b"head\n")
    for number in range(400):
        file.write(f"line {number:5}\n".encode())
    file.close()
    paths = [path, *(tmp_path / f"samples.csv.{number}" for number in range(1, KEPT_FILES + 1))]
    assert sorted(tmp_path.glob("samples*")) == sorted(paths)
    assert all(path.read_text().startswith("head\n") and path.stat().st_size <= 111 for path in paths)
    numbers = [int(line[5:]) for path in reversed(paths) for line in path.read_text().splitlines()[1:]]
    assert numbers == list(range(numbers[0], 400))
