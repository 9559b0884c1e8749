"""Being woken when a run's files change, with notification and without."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.metrics import watch
from gputui.metrics.folders import is_alive, signature
from gputui.metrics.watch import FileWatcher
from tests.conftest import wait_until


class Woken:
    """The agent's end of the pipe."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watcher: FileWatcher | None = None

    def start(self, **options: bool) -> FileWatcher:
        self.watcher = FileWatcher(self.runs, self.writing, **options)
        self.watcher.start()
        return self.watcher

    def settle(self) -> None:
        """Until nothing comes any more."""
        assert self.watcher is not None
        while select.select([self.reading], [], [], 0.3)[0]:
            self.drain()
        self.watcher.take()

    def drain(self) -> None:
        try:
            while os.read(self.reading, 4096):
                pass
        except BlockingIOError:
            return

    def after(self, change: Callable[[], object]) -> set[str]:
        """The runs told of after a change; fails when nothing wakes within five seconds."""
        assert self.watcher is not None
        change()
        assert select.select([self.reading], [], [], 5.0)[0], "not woken"
        self.drain()
        return self.watcher.take()

    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.stop()
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def woken(tmp_path: Path) -> Iterator[Woken]:
    runs = tmp_path / "runs"
    (runs / "a" / "attempts" / "1" / "ranks").mkdir(parents=True)
    made = Woken(runs)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "file-watcher"]


@pytest.fixture(params=["inotify", "polling"])
def mode(request: pytest.FixtureRequest, woken: Woken) -> str:
    watcher = woken.start(force_polling=request.param == "polling")
    assert watcher.mode == request.param, watcher.why_polling
    woken.settle()
    return str(request.param)


def test_what_the_agent_waits_for_wakes_it(woken: Woken, mode: str) -> None:
    metrics = (woken.runs / "a/metrics.jsonl").open("ab", 0)
    attempt = woken.runs / "a/attempts/1"
    assert woken.after(lambda: metrics.write(b"x\n")) == {"a"}
    woken.settle()
    assert woken.after(lambda: metrics.write(b"y\n")) == {"a"}
    woken.settle()

    def end() -> None:
        (attempt / "exit.json.tmp").write_text("{}")
        (attempt / "exit.json.tmp").rename(attempt / "exit.json")

    assert woken.after(end) == {"a"}
    woken.settle()

    def new_logs() -> None:
        (attempt / "ranks/x/attempt_0/0").mkdir(parents=True)
        (attempt / "ranks/x/attempt_0/0/stdout.log").write_text("hello")

    assert woken.after(new_logs) == {"a"}
    woken.settle()
    with (attempt / "ranks/x/attempt_0/0/stdout.log").open("a") as log:
        assert woken.after(lambda: (log.write("more"), log.flush())) == {"a"}
    metrics.close()


def test_a_new_run_is_followed_by_itself(woken: Woken, mode: str) -> None:
    assert "" in woken.after((woken.runs / "b").mkdir)
    woken.settle()
    assert woken.after((woken.runs / "b/metrics.jsonl").touch) == {"b"}


def test_the_doorbell(woken: Woken, mode: str) -> None:
    doorbell = woken.runs / ".doorbell"
    assert woken.after(doorbell.touch) == {""}
    woken.settle()
    assert woken.after(lambda: os.utime(doorbell, (1, 1))) == {""}


def test_a_run_that_begins_again(woken: Woken, mode: str) -> None:
    old = woken.runs / "old"
    (old / "attempts/1").mkdir(parents=True)
    (old / "attempts/1/exit.json").write_text("{}")
    assert woken.watcher is not None
    assert not is_alive(old)
    woken.watcher.unfollow("old")
    woken.settle()
    woken.watcher.follow("old")
    woken.settle()
    (old / "attempts/2").mkdir()
    assert is_alive(old)
    woken.settle()
    assert woken.after(lambda: (old / "attempts/2/output.log").write_text("x")) == {"old"}


def test_a_run_that_is_removed(woken: Woken, mode: str) -> None:
    file = woken.runs / "a/metrics.jsonl"
    assert woken.after(file.touch) == {"a"}
    file.unlink()
    for folder in ("a/attempts/1/ranks", "a/attempts/1", "a/attempts", "a"):
        (woken.runs / folder).rmdir()
    assert woken.watcher is not None
    woken.watcher.unfollow("a")
    woken.settle()
    assert "" in woken.after((woken.runs / "c").mkdir)


def test_only_runs_that_are_alive_are_followed_at_the_start(woken: Woken) -> None:
    for name in ("over", "waiting"):
        (woken.runs / name / "attempts").mkdir(parents=True)
    (woken.runs / "over/attempts/9").mkdir()
    (woken.runs / "over/attempts/10").mkdir()
    (woken.runs / "over/attempts/10/exit.json").touch()
    woken.start()
    woken.settle()
    (woken.runs / "over/metrics.jsonl").touch()
    assert woken.after((woken.runs / "waiting/metrics.jsonl").touch) == {"waiting"}


def test_a_busy_run_is_looked_at_instead_until_it_is_calm(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CALM_SECONDS", 0.5)
    watcher = woken.start()
    woken.settle()
    assert watcher.mode == "inotify"
    followed = watcher._followed["a"]
    with (woken.runs / "a/metrics.jsonl").open("ab", 0) as file:
        deadline = time.monotonic() + 10
        while followed.watch is not None and time.monotonic() < deadline:
            file.write(b"x\n")
            time.sleep(0.005)
        assert followed.watch is None
        woken.settle()
        assert woken.after(lambda: file.write(b"y\n")) == {"a"}
        wait_until(lambda: followed.watch is not None, 10, "listening again")
        woken.settle()
        assert woken.after(lambda: file.write(b"z\n")) == {"a"}


def test_without_inotify_it_polls_and_says_why(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(FileWatcher, "_schedule", refuse)
    watcher = woken.start()
    assert watcher.mode == "polling" and "limit" in (watcher.why_polling or "")
    woken.settle()
    assert woken.after((woken.runs / "a/metrics.jsonl").touch) == {"a"}


def test_a_file_system_that_takes_watches_and_never_tells(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileWatcher, "_on_root_event", lambda _self, _event: None)
    monkeypatch.setattr(watch, "PROBE_SECONDS", 0.05)
    watcher = woken.start()
    assert watcher.mode == "polling"
    assert list(woken.runs.glob(".probe*")) == []


def test_network_file_systems_are_polled(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "file_system_of", lambda _path, _mountinfo: "nfs4")
    watcher = woken.start()
    assert watcher.mode == "polling" and "nfs4" in (watcher.why_polling or "")


def test_a_limit_for_one_run_is_no_limit_for_the_others(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FileWatcher._schedule

    def schedule(self: FileWatcher, folder: Path, *rest: object, **options: object) -> object:
        if folder.name == "a":
            raise OSError(28, "inotify watch limit reached")
        return original(self, folder, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FileWatcher, "_schedule", schedule)
    assert woken.start().mode == "inotify"
    woken.settle()
    assert woken.after((woken.runs / "a/metrics.jsonl").touch) == {"a"}


def test_a_full_pipe_blocks_nobody(woken: Woken) -> None:
    try:
        while os.write(woken.writing, b"x" * 65536):
            pass
    except BlockingIOError:
        pass
    watcher = woken.start()
    (woken.runs / "a/metrics.jsonl").touch()
    wait_until(lambda: "a" in watcher.take(), 5, "noticing")


def test_checkpoints_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    before = signature(tmp_path)
    (tmp_path / "checkpoints/step_1.pt").touch()
    assert signature(tmp_path) == before
    (tmp_path / "metrics.jsonl").touch()
    assert signature(tmp_path) != before
    assert signature(tmp_path / "nothing here") == ()


def test_watchdog_is_loaded_only_where_it_is_used() -> None:
    program = "import sys, gputui.metrics.watch, gputui.metrics.ingest; print('watchdog' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
