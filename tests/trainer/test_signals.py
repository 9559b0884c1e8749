"""Signals become requests, and the former handlers come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import wait_until
from tests.trainer.running import ROOT
from trainer.signals import Signals


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
        assert signals.save and not signals.stop


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


def test_waiting_for_a_stop_ends_with_it_or_with_time() -> None:
    with Signals(30) as signals:
        began = time.monotonic()
        signals.wait_for_stop(0.05)
        assert time.monotonic() - began >= 0.05
        send(signal.SIGTERM)
        signals.wait_for_stop(600)


def test_the_death_of_the_launcher_asks_to_stop() -> None:
    launcher = subprocess.Popen(["sleep", "60"])
    with Signals(30, launcher=launcher.pid) as signals:
        signals.wait_for_stop(0.05)
        assert not signals.stop
        launcher.kill()
        signals.wait_for_stop(20)
        assert signals.stop == "the launcher died"
    launcher.wait()


def test_a_signal_is_named_where_the_launcher_dies_as_well() -> None:
    launcher = subprocess.Popen(["sleep", "60"])
    with Signals(30, launcher=launcher.pid) as signals:
        send(signal.SIGTERM)
        launcher.kill()
        launcher.wait()
        send(signal.SIGUSR1)
        wait_until(lambda: signals.save, 20, "the second signal")
        assert signals.stop == "SIGTERM"


def test_a_launcher_that_is_dead_already_is_not_watched() -> None:
    launcher = subprocess.Popen(["true"])
    launcher.wait()
    with Signals(30, launcher=launcher.pid) as signals:
        signals.wait_for_stop(0.05)
        assert not signals.stop


STUCK = """
import os, signal, sys, time
from trainer.signals import Signals
with Signals(0.2) as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    if sys.argv[1] == "reached":
        time.sleep(0.05)
        signals.reached()
        time.sleep(0.4)
    if sys.argv[1] == "collective":
        # Waits in C, without running Python's signal handlers, as a collective does.
        import ctypes
        ctypes.CDLL(None).sleep(30) or ctypes.CDLL(None).sleep(30)
    if sys.argv[1] == "python":
        time.sleep(30)
"""


@pytest.mark.parametrize(("where", "code"), [("python", 1), ("collective", 1), ("reached", 0), ("nothing", 0)])
def test_a_rank_that_hangs_ends_by_itself_and_shows_where(where: str, code: int) -> None:
    process = subprocess.run([sys.executable, "-c", STUCK, where], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert process.returncode == code
    assert ("Timeout (0:00:00" in process.stderr and "File " in process.stderr) == (code == 1)
