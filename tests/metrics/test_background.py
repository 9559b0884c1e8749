"""Files that are read aside: what does not answer keeps nobody else waiting, and nobody gets another run's values."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import Workspace
from gputui.metrics import background
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.rewritten import EarlierVersions
from gputui.metrics.sources import ReadContext
from gputui.runs.repository import transaction
from gputui.store.database import open_reader
from gputui.store.rows import update
from tests.conftest import wait_until
from tests.homes import Home, add_attempt

from .conftest import NOW, line


def in_a_thread(_name: str, work: Callable[[], Any]) -> Future[Any]:
    """Work in a thread, in most cases over on return."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except OSError as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2)
    return future


class ReadHome(Home):
    """A home with runs whose files lie elsewhere, which are read beside the loop."""

    def __init__(self, workspace: Workspace, work: Path) -> None:
        super().__init__(workspace, NOW)
        self.work = work
        self.notes: list[tuple[str, str]] = []
        context = ReadContext(
            start=in_a_thread, connect=lambda: open_reader(workspace.database), run_dir=workspace.run_dir
        )
        self.ingest = MetricsIngest(self.connection, clock=lambda: NOW, read_context=context)

    def begin(self, run_id: str, path: str, kind: str = "jsonl") -> None:
        """Begin a run that writes to a path below ``work``."""
        self.run(run_id)
        self.ingest.open_source(run_id, str(self.work / path), kind)
        wait_until(lambda: self.ingest.ends.awaited(run_id) is None)
        ends = self.ingest.ends.of(run_id)
        with transaction(self.connection):
            add_attempt(self.connection, run_id, began=NOW - 100)
            self.ingest.begin_attempt(run_id, 1, ends=ends)

    def fail(self, run_id: str, at: float) -> None:
        update(self.connection, "attempts", {"run_id": run_id}, ended_at=at)
        update(self.connection, "runs", {"run_id": run_id}, ended_at=at, state="failed")
        self.ingest.forget(run_id)

    def pump(self, rounds: int = 4) -> None:
        for _ in range(rounds):
            report = self.ingest.pump()
            self.notes += [(run_id, note.kind) for run_id, note in report.notes]
            time.sleep(0.01)

    def steps(self, run_id: str) -> list[int]:
        rows = self.connection.execute(
            "SELECT step FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ? "
            "ORDER BY source_id, metrics.generation, metrics.byte_offset",
            (run_id,),
        )
        return [row[0] for row in rows]


@pytest.fixture
def home(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadHome]:
    monkeypatch.setattr(background, "INTERVAL_SECONDS", 0.0)
    work = tmp_path / "work"
    work.mkdir()
    with closing(ReadHome(workspace, work)) as home:
        yield home
        home.ingest.close()


def write(path: Path, *steps: int, at: float | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(map(line, steps)))
    if at is not None:
        os.utime(path, (at, at))


class DeadFolder:
    """File operations below a folder that wait until it answers again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.touched_by: set[str] = set()
        for name in ("open", "stat", "scandir", "lstat"):
            monkeypatch.setattr(os, name, self._slow(getattr(os, name), f"{folder}/"))

    def _slow(self, real: Callable[..., Any], below: str) -> Callable[..., Any]:
        def call(path: Any = ".", *rest: Any, **options: Any) -> Any:
            if isinstance(path, str | Path) and f"{path}/".startswith(below):
                self.touched_by.add(threading.current_thread().name)
                self.answers.wait(90)
            return real(path, *rest, **options)

        return call


# --- whose file it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "log"),
    [
        ("log.jsonl", "log.jsonl", "log.jsonl"),
        ("logs/version_*/metrics.jsonl", "logs/**/metrics.jsonl", "logs/version_1/metrics.jsonl"),
    ],
)
def test_a_file_that_two_living_runs_name_is_read_for_neither(
    home: ReadHome, first: str, second: str, log: str
) -> None:
    home.begin("a", first)
    write(home.work / log, 1, 2)
    home.pump()
    assert home.steps("a") == [1, 2]
    home.begin("b", second)
    write(home.work / log, 3, 4)
    home.pump()
    assert sorted(home.notes) == [("a", "metrics_doubtful"), ("b", "metrics_doubtful")]
    # It has lines of both, also after one of them ended.
    home.fail("a", NOW + 10)
    write(home.work / log, 5)
    home.pump()
    assert (home.steps("a"), home.steps("b")) == ([1, 2], [])


def test_runs_that_do_not_overlap_in_time_share_a_file(home: ReadHome) -> None:
    log = home.work / "log.jsonl"
    home.begin("a", "log.jsonl")
    write(log, 1)
    home.pump()
    home.fail("a", NOW - 200)
    home.begin("b", "log.jsonl")
    write(log, 2)
    home.pump()
    assert (home.steps("a"), home.steps("b"), home.notes) == ([1], [2], [])


def test_a_rewritten_file_is_compared_in_another_thread(home: ReadHome, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    load = EarlierVersions._load
    monkeypatch.setattr(
        EarlierVersions,
        "_load",
        lambda *arguments: (threads.add(threading.current_thread()), load(*arguments))[1],
    )
    home.begin("a", str(home.workspace.runs / "a/m.jsonl"))
    file = home.workspace.runs / "a/m.jsonl"
    write(file, *range(20))
    home.pump()
    for first in (10, 15):
        file.write_text("".join(map(line, range(first, 30))))
        home.pump()
    write(file, 30)
    home.pump()
    assert home.steps("a") == list(range(31))
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("is_failing", [False, True])
def test_the_end_of_a_run_comes_also_where_its_files_are_never_read_at_once(
    home: ReadHome, *, is_failing: bool
) -> None:
    pending: list[tuple[Future[Any], Callable[[], Any]]] = []

    def start(_: str, work: Callable[[], Any]) -> Future[Any]:
        pending.append((Future(), work))
        return pending[-1][0]

    def answer_oldest() -> None:
        future, work = pending.pop(0)
        if is_failing:
            future.set_exception(OSError("stale"))
        else:
            future.set_result(work())

    for name in ("x.jsonl", "y.jsonl"):
        home.begin(name[0], name)
        write(home.work / name, 1)
    home.connection.execute("UPDATE metric_sources SET run_id = 'x'")
    context = ReadContext(start, lambda: open_reader(home.workspace.database), home.workspace.run_dir)
    ingest = MetricsIngest(home.connection, clock=lambda: NOW, read_context=context)
    for _ in range(20):
        report = ingest.finish("x")
        if not report.awaits and not report.more:
            break
        if pending:
            answer_oldest()
    else:
        pytest.fail("the sources await each other's reads")
    expected = [] if is_failing else [1, 1]
    assert home.steps("x") == expected
    ingest.close()


# --- what does not answer ---------------------------------------------------------------------------------------------


def test_a_file_system_that_does_not_answer_stops_no_other_run(home: ReadHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ANSWER_SECONDS", 60.0)
    dead = DeadFolder(home.work / "far", monkeypatch)
    home.begin("far", "far/m.jsonl")
    home.begin("near", str(home.workspace.runs / "near/m.jsonl"))
    write(home.work / "far/m.jsonl", 1)
    home.pump()
    assert home.steps("far") == [1]
    dead.answers.clear()
    # Ten times what the other file needs on a crowded machine.
    monkeypatch.setattr(background, "ANSWER_SECONDS", 2.0)
    began = time.monotonic()
    for step in itertools.count():
        write(home.workspace.runs / "near/m.jsonl", step)
        home.pump(1)
        if ("far", "metrics_unanswered") in home.notes or time.monotonic() - began > 60:
            break
    assert home.notes == [("far", "metrics_unanswered")]
    assert home.steps("near")
    assert threading.current_thread().name not in dead.touched_by
    # The end of the attempt is not kept waiting either.
    report = home.ingest.finish("far")
    assert not report.more
    assert not report.awaits
    dead.answers.set()
