"""The process of all sinks: one that hangs or fails holds up no other, and its trouble is told once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import Workspace
from gputui.reports.export import exporter, follow
from gputui.reports.export.exporter import PATIENCE_SECONDS, Exporter, SinkStatus
from gputui.reports.export.jsonl_sink import JsonlSink
from gputui.reports.export.mlflow_sink import SharedEnvironment
from gputui.reports.export.sink import ExportError
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.database import open_commander
from gputui.store.rows import update
from tests.conftest import wait_until
from tests.homes import NOW, Home

RUNS = ("good-1", "bad-1")


class ExportedHome(Home):
    """A home with two runs with a sink each; that of ``bad-1`` waits for ``gate``, or fails as ``refuses`` says."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        super().__init__(workspace)
        self.folder = folder
        self.gate = threading.Event()
        self.refuses = ""
        for run_id in RUNS:
            spec = RunSpec("net", "python", ("t.py",), "/", "/usr/bin/python", sinks={"jsonl": f"{folder}/{{run_id}}"})
            self.run(run_id, attempt=1)
            self.attempt(run_id, 1)
            self.metrics(run_id, 1, [{"step": step, "time": NOW, "loss": 1.0} for step in range(3)])
            run_dir = workspace.run_dir(run_id)
            run_dir.mkdir()
            write_spec(run_dir / SPEC_FILE, spec)
            update(self.connection, "runs", {"run_id": run_id}, spec=json.dumps(spec.to_json()))
            self.transition(run_id, None, "running", "", 0)

    def over(self) -> None:
        self.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (time.time(),))

    def steps(self, run_id: str) -> list[int]:
        path = self.folder / run_id
        lines = path.read_text().splitlines() if path.exists() else []
        return [line["step"] for line in map(json.loads, lines) if "loss" in line]

    def kinds(self) -> list[tuple[str, str]]:
        return self.rows("SELECT run_id, kind FROM events ORDER BY event_id")


@pytest.fixture
def home(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExportedHome]:
    exported = ExportedHome(workspace, tmp_path)

    class SlowSink(JsonlSink):
        def write(self, *piece: Any) -> None:
            if self._subject.run.run_id == "bad-1":
                if exported.refuses:
                    raise ExportError(exported.refuses)
                assert exported.gate.wait(60)
            super().write(*piece)

    monkeypatch.setattr(follow, "make_sink", lambda _name, subject, target: SlowSink(subject, target))
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exporter, "RETRY_SECONDS", (0.01,))
    yield exported
    exported.gate.set()
    exported.close()


@pytest.fixture
def process(home: ExportedHome) -> Iterator[Exporter]:
    workspace = home.workspace
    with closing(open_commander(workspace.database)) as connection:
        yield Exporter(workspace, connection)
    home.gate.set()


def ended(process: Exporter) -> bool:
    return not process.turn(time.monotonic())


def test_a_sink_that_hangs_holds_up_no_other_and_nothing_is_lost(home: ExportedHome, process: Exporter) -> None:
    process.turn(time.monotonic())
    home.over()
    wait_until(lambda: not process.turn(time.monotonic()) or len(process.sinks) == 1, what="the good one's end")
    assert home.steps("good-1") == [0, 1, 2]
    assert home.steps("bad-1") == []
    process.turn(time.monotonic() + PATIENCE_SECONDS + 1)
    assert home.kinds() == [("bad-1", "sink_failed"), ("bad-1", "sink_incomplete")]
    home.gate.set()
    with closing(open_commander(home.workspace.database)) as connection:
        heir = Exporter(home.workspace, connection)
        wait_until(lambda: ended(heir), what="the next process's end")
    assert home.steps("bad-1") == [0, 1, 2]
    wait_until(lambda: home.kinds()[2:] == [("bad-1", "sink_recovered")], what="the good news, once")


def test_trouble_is_told_once_and_its_end_too(home: ExportedHome, process: Exporter) -> None:
    home.gate.set()
    home.refuses = "no room"
    process.turn(time.monotonic())
    wait_until(lambda: process.sinks["bad-1", "jsonl"].failures > 3, what="some failures")
    assert home.kinds() == [("bad-1", "sink_failed")]
    home.refuses = ""
    wait_until(lambda: len(home.kinds()) == 2, what="its end")
    home.over()
    wait_until(lambda: ended(process), what="the end of both")
    assert home.kinds()[1:] == [("bad-1", "sink_recovered")]
    assert home.steps("bad-1") == home.steps("good-1") == [0, 1, 2]


def test_a_run_that_is_resumed_or_removed(home: ExportedHome, process: Exporter) -> None:
    home.refuses = "was moved"
    home.connection.execute("PRAGMA foreign_keys = ON")
    process.turn(time.monotonic())
    wait_until(lambda: home.kinds() == [("bad-1", "sink_failed")], what="the problem")
    home.connection.execute("DELETE FROM runs WHERE run_id = 'bad-1'")
    home.over()
    wait_until(lambda: ended(process), what="both ends")
    home.connection.execute("UPDATE runs SET state = 'running', ended_at = NULL")
    home.transition("good-1", None, "running", "", 0)
    home.metrics("good-1", 1, [{"step": 3, "time": NOW, "loss": 1.0}])
    process.turn(time.monotonic())
    home.over()
    wait_until(lambda: ended(process), what="the end again")
    assert home.steps("good-1") == [0, 1, 2, 3]
    assert home.kinds() == [("bad-1", "sink_failed")]


def test_runs_with_other_settings_of_mlflow_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MLFLOW_TRACKING_TOKEN"
    monkeypatch.setenv(name, "own")
    shared = SharedEnvironment()

    def keeps(token: str) -> bool:
        with shared.of({name: token} if token else {}):
            before = os.environ[name]
            time.sleep(0.01)
            return before == os.environ[name] == (token or "own")

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(keeps, ("a", "b", "", "a", "b")))


def test_a_problem_that_could_not_be_reported_ends_with_the_next_write(tmp_path: Path) -> None:
    status = SinkStatus(follow.Follower(Workspace(tmp_path, tmp_path), "run-1", "jsonl", str(tmp_path / "x")))
    status.note("the disk is full")  # there is no database
    assert (status.last_event, status.problem) == (None, "the disk is full")
    status.end(time.time())
    assert not status.problem
