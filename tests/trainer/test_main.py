"""How the process ends where something goes wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.trainer.running import PATIENCE_SECONDS, ROOT, SMALL, step_lines
from trainer import run, world
from trainer.__main__ import main
from trainer.errors import TrainerError


@pytest.mark.long
def test_asking_for_a_checkpoint_before_there_is_one_does_not_end_the_run(tmp_path: Path) -> None:
    def ignores() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        return bool(ignored >> (signal.SIGUSR1 - 1) & 1)

    flags = ("--device", "cpu", "--output-dir", str(tmp_path), *SMALL, "--steps", "2")
    process = subprocess.Popen([sys.executable, "-m", "trainer", *flags], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_until(ignores, PATIENCE_SECONDS, "the beginning")
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
    assert len(step_lines(tmp_path)) == 2


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
