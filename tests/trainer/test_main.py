"""How the process ends where something goes wrong, and what it shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.tables import table
from trainer import run, world
from trainer.__main__ import main
from trainer.errors import TrainerError, show


class EndedError(BaseException):
    """Stands for the end of the process."""


def ended(code: int) -> None:
    raise EndedError(code)


@table(
    ("error", "code", "shown"),
    [
        (TrainerError("no such data"), 1, "trainer: no such data\n"),
        (RuntimeError("broken"), 1, "RuntimeError: broken\n"),
        (SystemExit(7), 7, ""),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
    ],
)
def test_after_an_error_a_rank_with_nccl_goes_without_waiting_for_the_others(
    error: BaseException, code: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: object) -> None:
        raise error

    def waits() -> None:
        raise AssertionError("this may wait for ever")

    monkeypatch.setattr(run, "run", fail)
    monkeypatch.setattr(world, "leaving_may_wait", lambda: True)
    monkeypatch.setattr(world, "leave", waits)
    monkeypatch.setattr("os._exit", ended)
    with pytest.raises(EndedError) as end:
        main(["--device", "cpu"])
    assert end.value.args == (code,)
    assert capsys.readouterr().err.endswith(shown)


def test_elsewhere_errors_come_out_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: object) -> None:
        raise RuntimeError("broken")

    left: list[bool] = []
    monkeypatch.setattr(run, "run", fail)
    monkeypatch.setattr(world, "leave", lambda: left.append(True))
    with pytest.raises(RuntimeError, match="broken"):
        main(["--device", "cpu"])
    assert left == [True]


def test_lines_go_out_at_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    show("a line")
    show("trainer: a trouble", error=True)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("before\na line\n", "trainer: a trouble\n")


@table("missing", [None, "closed"])
def test_a_stream_that_is_not_there_is_done_without(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], missing: str | None
) -> None:
    closed = Path(os.devnull).open("w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed if missing else None)
    show("a line")
    assert "a line" not in capfd.readouterr().out, "and no error"
