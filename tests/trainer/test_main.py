"""The end of the process after an error, and its output."""

from __future__ import annotations

import sys

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
    ("error", "code", "expected"),
    [
        (TrainerError("no such data"), 1, "trainer: no such data\n"),
        (RuntimeError("broken"), 1, "RuntimeError: broken\n"),
        (SystemExit(7), 7, ""),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
    ],
)
def test_after_an_error_a_rank_with_nccl_goes_without_waiting_for_the_others(
    error: BaseException, code: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    leaves: list[bool] = []
    monkeypatch.setattr(run, "run", fail)
    monkeypatch.setattr(world, "leave", lambda: leaves.append(True))
    monkeypatch.setattr(world, "leaving_may_wait", lambda: True)
    monkeypatch.setattr("os._exit", ended)
    with pytest.raises(EndedError) as end:
        main(["--device", "cpu"])
    assert end.value.args == (code,)
    assert not leaves
    assert capsys.readouterr().err.endswith(expected)
    monkeypatch.setattr(world, "leaving_may_wait", lambda: False)
    if isinstance(error, TrainerError):
        assert main(["--device", "cpu"]) == code
    else:
        with pytest.raises(type(error)):
            main(["--device", "cpu"])
    assert leaves == [True]


def test_lines_go_out_at_once_and_in_order(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    print("before")
    show("a line")
    show("trainer: a trouble", error=True)
    output = capfd.readouterr()
    assert (output.out, output.err) == ("before\na line\n", "trainer: a trouble\n")
    monkeypatch.setattr(sys, "stdout", None)
    show("a line")
    assert capfd.readouterr().out == ""
