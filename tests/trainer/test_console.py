"""What is shown to a person, and what happens where nobody can see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.running import PATIENCE_SECONDS, ROOT, SMALL, step_lines
from trainer.errors import show


def test_lines_go_out_at_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    show("a line")
    show("trainer: a trouble", error=True)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("before\na line\n", "trainer: a trouble\n")


def test_what_stands_for_a_stream_gets_the_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    show("a line")
    assert capsys.readouterr().out == "a line\n"


def test_a_name_that_is_no_text_is_shown_somehow(capfd: pytest.CaptureFixture[str]) -> None:
    show(os.fsdecode(b"bad\xff.png"))
    assert capfd.readouterr().out == "bad\\udcff.png\n"


@pytest.mark.parametrize("missing", [None, "closed"])
def test_a_stream_that_is_not_there_is_done_without(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], missing: str | None
) -> None:
    closed = Path(os.devnull).open("w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed if missing else None)
    show("a line")
    assert "a line" not in capfd.readouterr().out, "and no error"


@pytest.mark.parametrize("console", ["a reader that left", pytest.param("a full disk", marks=pytest.mark.long)])
def test_training_goes_on_where_nothing_can_be_shown(tmp_path: Path, console: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full:
        to = full.fileno() if console == "a full disk" else writing
        flags = ("--device", "cpu", "--output-dir", str(tmp_path), *SMALL, "--steps", "3", "--log-every", "1")
        done = subprocess.run(
            [sys.executable, "-m", "trainer", *flags], cwd=ROOT, stdout=to, stderr=to, timeout=PATIENCE_SECONDS
        )
    os.close(writing)
    assert done.returncode == 0
    assert len(step_lines(tmp_path)) == 3
