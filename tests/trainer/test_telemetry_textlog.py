"""The text log: one line at a time, a new file every day, and harmless when its disk is full."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from trainer.telemetry.writers import TextLog


def test_lines_have_utc_times_and_a_level(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "logs")
    log.write("step 1/3")
    log.write("disk full:\n  really", error=True)
    log.close()
    first, second = (tmp_path / "logs" / "trainer.log").read_text().splitlines()
    written = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z INFO step 1/3", first)
    assert written
    assert abs(time.mktime(time.strptime(written[1], "%Y-%m-%dT%H:%M:%S")) - time.mktime(time.gmtime())) < 60
    assert second.endswith("Z ERROR disk full:   really")


def test_a_new_day_begins_a_new_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("of an earlier day\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))  # 2023-11-14
    log = TextLog(tmp_path)
    log.write("today")
    log.close()
    assert (tmp_path / "trainer.log.2023-11-14").read_text() == "of an earlier day\n"
    assert path.read_text().endswith("INFO today\n")


def test_another_rank_has_a_file_once_it_says_something(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "logs", rank=3)
    assert list((tmp_path / "logs").iterdir()) == []
    log.write("cannot read", error=True)
    log.close()
    assert "ERROR cannot read" in (tmp_path / "logs" / "trainer.rank3.log").read_text()


def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainer.log").symlink_to("/dev/full")
    log = TextLog(tmp_path)
    for _ in range(3):
        log.write("step")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "cannot write the text log" in shown and "No space left on device; training goes on" in shown
