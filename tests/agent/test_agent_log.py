"""The agent's log stays bounded, and nothing written to it is lost before its time."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gputui.agent.housekeeping import rotate
from gputui.agent.loop import HidingFormatter
from gputui.core.redaction import REDACTED

INHERITED, OWN = "inherited-secret", "of-the-run-alone"


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", INHERITED)


def test_three_files_are_kept_and_every_line_is_in_one_of_them(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        assert not rotate(log, 100)
        for number in range(4):
            os.write(writer, f"part {number}\n".encode() + b"x" * 100)
            assert rotate(log, 100)
            assert log.stat().st_size == 0
        os.write(writer, b"still open\n")
        assert not rotate(log, 100)
    finally:
        os.close(writer)
    assert sorted(path.name for path in tmp_path.glob("agent.log*")) == ["agent.log", "agent.log.1", "agent.log.2"]
    texts = [(tmp_path / name).read_text().splitlines()[0] for name in ("agent.log", "agent.log.1", "agent.log.2")]
    assert texts == ["still open", "part 3", "part 2"]
    assert (tmp_path / "agent.log.1").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("inherited")
def test_the_log_hides_them_in_tracebacks_too() -> None:
    formatter = HidingFormatter("%(levelname)s %(message)s", "%H")
    try:
        raise ValueError(f"password={OWN} and {INHERITED}")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "p", 1, "got %s", (INHERITED,), (ValueError, error, error.__traceback__)
        )
    text = formatter.format(record)
    assert text.startswith(f"ERROR got {REDACTED}\nTraceback") and OWN not in text and INHERITED not in text
