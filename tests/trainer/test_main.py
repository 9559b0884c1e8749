"""How the process ends where something goes wrong."""

from __future__ import annotations

import pytest

from trainer import run, world
from trainer.__main__ import main
from trainer.errors import TrainerError


class EndedError(BaseException):
    """Stands for the end of the process."""


def ended(code: int) -> None:
    raise EndedError(code)


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (TrainerError("no such data"), 1, "trainer: no such data\n"),
        (RuntimeError("broken"), 1, "RuntimeError: broken\n"),
        (SystemExit(7), 7, ""),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
    ],
)
def test_after_an_error_a_rank_with_nccl_goes_without_waiting_for_the_others(
    error: BaseException,
    code: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
