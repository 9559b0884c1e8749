"""Signals become requests, and the former handlers come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.tables import table
from tests.trainer.running import PATIENCE_SECONDS, ROOT, SMALL
from trainer.signals import Signals

STUCK = """
import os, signal, sys, time
from trainer.signals import Signals
limit = float(sys.argv[2])
with Signals(limit) as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    if sys.argv[1] == "reached":
        time.sleep(0.05)
        signals.reached()
        time.sleep(1.3 * limit)
    if sys.argv[1] == "collective":
        # Waits in C, without running Python's signal handlers, as a collective does.
        import ctypes
        ctypes.CDLL(None).sleep(30) or ctypes.CDLL(None).sleep(30)
    if sys.argv[1] == "python":
        time.sleep(30)
    began = time.monotonic()
    if sys.argv[1] == "writing":
        with signals.patient(lambda: int((time.monotonic() - began) * 10)):
            time.sleep(1.5 * limit)
    if sys.argv[1] == "writing, stuck":
        with signals.patient(lambda: min(0.5, time.monotonic() - began)):
            time.sleep(30)
    if sys.argv[1] == "stuck after writing":
        with signals.patient(time.monotonic):
            pass
        time.sleep(30)
    if sys.argv[1] == "waiting":
        with signals.waiting(lambda reason: print("reported", reason)):
            time.sleep(1.5 * limit)
    if sys.argv[1] == "stuck after waiting":
        with signals.waiting(print):
            pass
        time.sleep(30)
"""


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def ends(limit: float, *places: str) -> dict[str, tuple[int, bool]]:
    """The exit codes of processes that wait at these places, and whether they showed where."""
    started = {
        where: subprocess.Popen(
            [sys.executable, "-c", STUCK, where, str(limit)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for where in places
    }
    errors = {where: process.communicate(timeout=PATIENCE_SECONDS)[1] for where, process in started.items()}
    return {
        where: (process.returncode, "Timeout (0:00:00" in errors[where] and "File " in errors[where])
        for where, process in started.items()
    }


@table("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_a_request_however_often_it_comes(number: signal.Signals) -> None:
    with Signals(30) as signals:
        assert signals.stop == ""
        for _ in range(3):
            send(number)
        assert signals.stop == number.name
        assert not signals.save


def test_usr1_asks_for_a_checkpoint_only() -> None:
    with Signals(30) as signals:
        send(signal.SIGUSR1)
        assert signals.save
        assert not signals.stop


def test_interrupting_again_later_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Signals(30):
        send(signal.SIGINT)
        now[0] += 0.5
        send(signal.SIGINT)
        now[0] += 1.0
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with Signals(30):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


def test_the_death_of_the_launcher_asks_to_stop() -> None:
    launcher = subprocess.Popen(["sleep", "600"])
    with Signals(30, launcher=launcher.pid) as signals:
        signals.wait_for_stop(0.05)
        assert not signals.stop
        launcher.kill()
        signals.wait_for_stop(120)
        assert signals.stop == "the launcher died"
    launcher.wait()


def test_a_rank_that_hangs_ends_by_itself_and_shows_where() -> None:
    stuck = ("python", "collective", "writing, stuck", "stuck after writing", "stuck after waiting")
    assert ends(0.6, *stuck) == dict.fromkeys(stuck, (1, True))


@pytest.mark.long
def test_one_that_goes_on_does_not() -> None:
    going = ("reached", "nothing", "writing", "waiting")
    assert ends(3, *going) == dict.fromkeys(going, (0, False))


def test_a_rank_that_waits_reports_a_stop_and_one_that_listens_hears_it() -> None:
    notes: list[str] = []
    with Signals(30) as signals, signals.listening(lambda: "".join(notes)):
        assert not signals.stop
        notes.append("SIGTERM")
        wait_until(lambda: signals.stop == "SIGTERM", 120, "what another rank was asked")
    with Signals(30) as signals, signals.waiting(notes.append):
        send(signal.SIGINT)
        wait_until(lambda: set(notes) == {"SIGTERM", "SIGINT"}, 120, "the report")


def test_the_timeout_of_a_stop_holds_in_later_phases(tmp_path: Path) -> None:
    phases = json.dumps([{"name": "a", "steps": 2}, {"name": "b", "steps": 6}])
    arguments = ["-m", "trainer", "--output-dir", str(tmp_path), *SMALL, "--phases", phases, "--inject", "hang@step=4"]
    process = subprocess.Popen(
        [sys.executable, *arguments, "--stop-timeout", "1"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"step": 3' in metrics.read_text(), PATIENCE_SECONDS)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "Timeout (0:00:01" in error


@pytest.mark.long
def test_a_search_for_the_batch_may_take_longer_than_a_stop(tmp_path: Path) -> None:
    """Each of eight trials takes a second, and a step has five to end."""
    sizes = ["--batch-size", "auto", "--max-batch-size", "64", "--stop-timeout", "5", "--validate-every", "0"]
    faults = ["--inject", "slow@step=1,seconds=1,times=always"]
    command = [sys.executable, "-m", "trainer", "--output-dir", str(tmp_path), *SMALL[2:], *sizes, *faults]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"event": "start"' in metrics.read_text(), PATIENCE_SECONDS)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pt")] == ["step_00000001.pt"]
