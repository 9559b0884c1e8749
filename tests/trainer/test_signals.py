"""Signals become requests, and the former handlers come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.trainer.running import PATIENCE_SECONDS, ROOT, SMALL, events
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
    launcher = subprocess.Popen(["sleep", "600"])
    with Signals(30, launcher=launcher.pid) as signals:
        signals.wait_for_stop(0.05)
        assert not signals.stop
        launcher.kill()
        signals.wait_for_stop(120)
        assert signals.stop == "the launcher died"
    launcher.wait()


def test_a_signal_is_named_where_the_launcher_dies_as_well() -> None:
    launcher = subprocess.Popen(["sleep", "600"])
    with Signals(30, launcher=launcher.pid) as signals:
        send(signal.SIGTERM)
        launcher.kill()
        launcher.wait()
        send(signal.SIGUSR1)
        wait_until(lambda: signals.save, 120, "the second signal")
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


ENDS = {
    "python": 1,
    "collective": 1,
    "reached": 0,
    "nothing": 0,
    "writing": 0,
    "writing, stuck": 1,
    "stuck after writing": 1,
    "waiting": 0,
    "stuck after waiting": 1,
}


@pytest.mark.parametrize(("where", "code"), ENDS.items())
def test_a_rank_that_hangs_ends_by_itself_and_shows_where(where: str, code: int) -> None:
    # Where the clock must not run out, it leaves time for a crowded machine's delays.
    words = [sys.executable, "-c", STUCK, where, "0.6" if code else "3"]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert ("Timeout (0:00:00" in process.stderr and "File " in process.stderr) == (code == 1)


def test_a_rank_that_waits_reports_a_stop_once_and_one_that_listens_hears_it() -> None:
    notes: list[str] = []
    with Signals(30) as signals, signals.listening(lambda: "".join(notes)):
        assert not signals.stop
        notes.append("SIGTERM")
        wait_until(lambda: signals.stop == "SIGTERM", 120, "what another rank was asked")
    with Signals(30) as signals, signals.waiting(notes.append):
        send(signal.SIGINT)
        wait_until(lambda: notes == ["SIGTERM", "SIGINT"], 120, "the report")
        send(signal.SIGUSR1)
        wait_until(lambda: signals.save, 120, "another signal")
    assert notes == ["SIGTERM", "SIGINT"]


SLOW_DISK = """
import os, signal, sys, time
from trainer.checkpoints import streams
take, writes = streams.HashingFile.take, []

def slowly(self, view):
    writes.append(len(view))
    if len(writes) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.03)
    take(self, view)

streams.HashingFile.take = slowly
from trainer.__main__ import main
code = main(sys.argv[1:])
print(f"wrote for {0.03 * len(writes):.1f} s")
sys.exit(code)
"""


@pytest.mark.parametrize("compressed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_stop_during_a_save_that_takes_longer_than_the_limit_leaves_the_checkpoint(
    compressed: bool, tmp_path: Path
) -> None:
    flags = ["--output-dir", str(tmp_path), *SMALL, "--steps", "50", "--checkpoint-every", "4", "--stop-timeout", "3"]
    flags += ["--device", "cpu", "--gzip-checkpoints", str(compressed).lower()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", SLOW_DISK, *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    [stop] = events(tmp_path, "stop")
    assert (stop["step"], stop["reason"]) == (5, "SIGTERM")
    assert float(process.stdout.split("wrote for ")[1].split()[0]) > 6
    assert [event["step"] for event in events(tmp_path, "checkpoint")] == [4, 5]
