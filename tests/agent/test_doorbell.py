"""The bell that wakes the agent when a command was written."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.agent import doorbell
from gputui.agent.doorbell import Doorbell


class Rung:
    """A bell over a folder of runs, and whether it rang."""

    def __init__(self, runs: Path) -> None:
        self.file = runs / ".doorbell"
        self._rang = threading.Event()
        self.bell = Doorbell(runs, self._rang.set)

    def rings(self) -> bool:
        """Whether a touch of the doorbell is heard."""
        self._rang.clear()
        self.file.touch()
        return self._rang.wait(5.0)


@pytest.fixture
def rung(tmp_path: Path) -> Iterator[Rung]:
    before = set(threading.enumerate())
    made = Rung(tmp_path)
    yield made
    made.bell.stop()
    assert not set(threading.enumerate()) - before


def no_threads(*_arguments: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_touch_of_the_doorbell_is_heard_each_time(rung: Rung) -> None:
    rung.bell.start()
    assert rung.bell.is_heard
    assert rung.rings() and rung.rings()


def test_the_number_of_threads_does_not_grow_with_the_runs(rung: Rung, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"run-{number}" / "attempts" / "1").mkdir(parents=True)
    before = set(threading.enumerate())
    rung.bell.start()
    assert len(set(threading.enumerate()) - before) <= 3
    assert rung.rings()


def test_without_a_thread_left_the_agent_goes_on(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_threads)
    rung.bell.start()
    assert not rung.bell.is_heard


def test_with_one_thread_too_few_nothing_is_left_behind(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if started:
            no_threads()
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    rung.bell.start()
    assert started and not rung.bell.is_heard


def test_without_a_watch_left_the_agent_goes_on(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "no such folder", lambda: None)
    bell.start()
    assert not bell.is_heard
    bell.stop()


def test_network_file_systems_are_not_listened_to(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "file_system_of", lambda _path, _mountinfo: "nfs4")
    rung.bell.start()
    assert not rung.bell.is_heard


def test_watchdog_is_loaded_only_where_it_is_used() -> None:
    program = "import sys, gputui.agent.doorbell, gputui.metrics.ingest; print('watchdog' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
