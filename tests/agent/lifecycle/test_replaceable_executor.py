"""An executor whose attempts run elsewhere: no GPU here is waited for, and one that was killed is replaced."""

from __future__ import annotations

import os
import selectors
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.execution import REPLACE_SECONDS, REPORTS_SECONDS
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import Workspace
from gputui.runs.executors import EXECUTORS
from gputui.runs.executors.base import Executor
from gputui.runs.spec import GpuRequest
from gputui.store.attempts import Attempt
from gputui.store.events import read_events
from gputui.store.placements import UNKNOWN_AFTER_SECONDS, PlacementView
from gputui.store.runs import read_runs
from gputui.ui.cli.context import Session
from gputui.ui.cli.ps import command as ps
from gputui.ui.views.run_words import placement_words
from tests.agent.conftest import add_run, attempt_of
from tests.conftest import wait_until
from tests.homes import SPEC as BASE
from tests.homes import add_run, attempt_of

SPEC = replace(BASE, gpus=GpuRequest(8), nproc=8, target={"name": "far", "kind": "runner"})
SCRIPT = Path(__file__).with_name("runner.py")


class RemoteRunner(Executor):
    places_gpus = False
    is_replaceable = True
    sees_processes = False
    file_name = SCRIPT.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(SCRIPT), str(folder))


class Bench:
    """A supervisor whose executor is a runner, with a clock that the test moves."""

    def __init__(self, workspace: Workspace, connection: sqlite3.Connection) -> None:
        self.workspace, self.connection, self.clock = workspace, connection, 1000.0
        self.folder = workspace.run_dir("a-1") / "attempts" / "1"
        context = AgentContext.of(self.connection, self.workspace, wake=lambda: None, monotonic=lambda: self.clock)
        self.supervisor = Supervisor(context, selectors.DefaultSelector())

    def attempt(self) -> Attempt:
        return attempt_of(self.connection)

    def pid(self) -> int:
        executor = self.attempt().executor
        assert executor is not None
        return executor[0]

    def state(self) -> str:
        self.supervisor.turn()
        return str(self.connection.execute("SELECT state FROM runs WHERE run_id = 'a-1'").fetchone()[0])

    def placement(self) -> PlacementView | None:
        self.clock += REPORTS_SECONDS
        self.supervisor.turn()
        return read_runs(self.connection)[-1].placement

    def is_served_by_another(self, pid: int) -> bool:
        self.supervisor.turn()
        return self.pid() != pid


@pytest.fixture
def bench(workspace: Workspace, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setitem(EXECUTORS, "runner", f"{__name__}:RemoteRunner")
    add_run(connection, spec=SPEC, workspace=workspace)
    made = Bench(workspace, connection)
    yield made
    # Whatever happened, neither side of it stays.
    made.folder.mkdir(parents=True, exist_ok=True)
    (made.folder / "finish").touch()
    wait_until(lambda: made.state() == "succeeded", what="the end")


def test_one_that_is_killed_finds_its_job_again(bench: Bench) -> None:
    bench.supervisor.turn()
    wait_until(lambda: bench.placement() is not None and bench.attempt().started_at is not None, what="the start")
    first = bench.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not bench.supervisor.attempts["a-1"].executor.is_alive, what="its end")
    assert not bench.is_served_by_another(first), "one that ends at once is not begun again and again"
    bench.clock += REPLACE_SECONDS
    wait_until(lambda: bench.is_served_by_another(first), what="another runner")
    (bench.folder / "finish").touch()
    wait_until(lambda: bench.state() == "succeeded", what="the end of the job")
    assert (bench.folder / "submitted").read_text() == "once\n"
    assert bench.connection.execute("SELECT count(*) FROM attempts").fetchone() == (1,)


def test_its_place_is_stored_and_shown_and_waiting_there_is_no_start(bench: Bench) -> None:
    bench.folder.mkdir(parents=True)
    (bench.folder / "far-state").write_text("pending")
    wait_until(lambda: bench.placement() is not None, what="the first report")
    run = read_runs(bench.connection)[-1]
    placement = run.placement
    assert run.target == "far" and placement is not None
    assert (placement.state, placement.reason, placement.nodes) == ("pending", "Priority", ("node1",))
    assert bench.attempt().started_at is None and bench.state() == "starting"
    heard = placement.contact_at
    assert heard is not None
    assert placement_words(run, heard + 1.0)[1] == "text"
    assert "(Priority)" in CliRunner().invoke(ps, obj=Session(bench.workspace)).output
    words, style = placement_words(run, heard + UNKNOWN_AFTER_SECONDS)
    assert "unknown since" in words and style == "warn"
    (bench.folder / "far-state").write_text("running")
    wait_until(lambda: bench.placement() != placement and bench.attempt().started_at is not None, what="the start")
    told = [event.key for event in read_events(bench.connection, run_id="a-1") if event.kind == "placed"]
    assert told == ["pending", "running"]
