"""Metrics lines and the text log: whole, in order, and harmless to the training whatever happens to the disk."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from pathlib import Path

import pytest

from tests.texts import mentions
from tests.trainer.running import lines
from trainer.telemetry.writers import MetricsWriter, TextLog


def test_a_line_is_one_json_object_with_step_and_time(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "deep" / "metrics.jsonl")
    writer.write(3, loss=0.5, event="start", nothing=None, **{"val/loss": math.nan})
    writer.close()
    [line] = lines(tmp_path / "deep")
    assert (line["step"], line["loss"], line["event"], line["nothing"]) == (3, 0.5, "start", None)
    assert isinstance(line["time"], float)
    assert isinstance(line["val/loss"], float) and math.isnan(line["val/loss"])


def test_a_half_line_of_a_killed_predecessor_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    for step in (3, 4):
        writer = MetricsWriter(path)
        writer.write(step)
        writer.close()
    broken = path.read_text().splitlines()
    assert broken[1] == '{"step": 2, "lo'
    assert [json.loads(line)["step"] for line in broken[2:]] == [3, 4]


def test_lines_of_several_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writers = [MetricsWriter(path) for _ in range(4)]

    def write(rank: int) -> None:
        for step in range(200):
            writers[rank].write(step, rank=rank, padding="x" * (step % 50) * 10)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = lines(tmp_path)
    for rank in range(4):
        assert [line["step"] for line in seen if line["rank"] == rank] == list(range(200))


def test_a_full_disk_is_reported_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    writer = MetricsWriter(Path("/dev/full"))
    for step in range(3):
        writer.write(step)
    writer.close()
    assert writer.failures == 3
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "No space left on device" in shown


def test_after_a_cut_line_the_next_one_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        writer.write(1, loss=1.0)
    writer.write(2, loss=2.0)
    writer.close()
    assert writer.failures == 1
    assert json.loads(path.read_text().splitlines()[1])["step"] == 2


def test_lines_have_utc_times_and_a_level(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "logs")
    log.write("step 1/3")
    log.write("disk full:\n  really", error=True)
    log.close()
    first, second = (tmp_path / "logs" / "trainer.log").read_text().splitlines()
    written = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z INFO step 1/3", first)
    assert written
    assert abs(time.mktime(time.strptime(written[1], "%Y-%m-%dT%H:%M:%S")) - time.mktime(time.gmtime())) < 60
    assert second.partition("Z ERROR ")[2] == "disk full:   really"


def test_a_new_day_begins_a_new_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("of an earlier day\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))  # 2023-11-14
    log = TextLog(tmp_path)
    log.write("today")
    log.close()
    assert (tmp_path / "trainer.log.2023-11-14").read_text() == "of an earlier day\n"
    assert path.read_text().endswith("INFO today\n")


def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainer.log").symlink_to("/dev/full")
    log = TextLog(tmp_path)
    for _ in range(3):
        log.write("step")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and mentions(shown, "text log", "No space left on device")
