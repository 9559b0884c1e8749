"""An executor whose attempts run elsewhere: no GPU here is waited for, and one that was killed is replaced."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.commands.answers import RefusedError
from gputui.agent.commands.dispatch import refuse_impossible_gpus
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import execution
from gputui.agent.lifecycle.active_run import Starting
from gputui.agent.lifecycle.execution import ALIVE_LOOK_SECONDS, REPLACE_SECONDS
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import Workspace
from gputui.gpu.model import Inventory
from gputui.runs import repository
from gputui.runs.executors import EXECUTORS
from gputui.runs.executors.base import Executor
from gputui.runs.repository import transaction
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import read_events
from gputui.store.placements import UNKNOWN_AFTER_SECONDS, PlacementView
from gputui.store.runs import read_runs
from gputui.tui.layout.run_words import placement_words
from tests.conftest import wait_until
from tests.stores import open_store

LOCAL_SPEC = RunSpec(
    name="a", launcher="python", program=("x.py",), python="/p", workdir="/", gpus=GpuRequest(8), nproc=8
)
SPEC = replace(LOCAL_SPEC, target={"name": "far", "kind": "courier"})
SCRIPT = Path(__file__).with_name("courier.py")


class Courier(Executor):
    places_gpus = False
    is_replaceable = True
    sees_processes = False
    file_name = SCRIPT.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(SCRIPT), str(folder))


class Bench:
    """A supervisor whose executor is a courier, with a clock that the test moves."""

    def __init__(self, workspace: Workspace, connection: sqlite3.Connection) -> None:
        self.workspace, self.connection, self.clock = workspace, connection, 1000.0
        self.folder = workspace.run_dir("a-1") / "attempts" / "1"
        self.supervise()

    def supervise(self) -> None:
        context = AgentContext.of(self.connection, self.workspace, wake=lambda: None, monotonic=lambda: self.clock)
        self.supervisor = Supervisor(context, selectors.DefaultSelector())

    def attempt(self) -> Attempt:
        found = get_attempt(self.connection, "a-1", 1)
        assert found is not None
        return found

    def pid(self) -> int:
        executor = self.attempt().executor
        assert executor is not None
        return executor[0]

    def state(self) -> str:
        self.supervisor.turn()
        return str(self.connection.execute("SELECT state FROM runs WHERE run_id = 'a-1'").fetchone()[0])

    def placement(self) -> PlacementView | None:
        self.clock += ALIVE_LOOK_SECONDS
        self.supervisor.turn()
        return read_runs(self.connection)[-1].placement

    def is_served_by_another(self, pid: int) -> bool:
        self.supervisor.turn()
        return self.pid() != pid


@pytest.fixture
def bench(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setitem(EXECUTORS, "courier", f"{__name__}:Courier")
    connection = open_store(workspace.database)
    with transaction(connection):
        repository.insert_run(connection, run_id="a-1", sequence=1, name="a", spec=SPEC, params={}, now=1.0, actor="me")
    workspace.run_dir("a-1").mkdir()
    write_spec(workspace.run_dir("a-1") / SPEC_FILE, SPEC)
    made = Bench(workspace, connection)
    yield made
    # Whatever happened, neither side of it stays.
    made.folder.mkdir(parents=True, exist_ok=True)
    (made.folder / "finish").touch()
    wait_until(lambda: made.state() == "succeeded", what="the end")
    connection.close()


def test_one_that_is_killed_finds_its_job_again(bench: Bench) -> None:
    bench.supervisor.turn()
    wait_until(lambda: bench.placement() is not None and bench.attempt().started_at is not None, what="the start")
    first = bench.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not bench.supervisor.runs.attempts()[0].executor.is_alive, what="its end")
    assert not bench.is_served_by_another(first), "one that ends at once is not begun again and again"
    bench.clock += REPLACE_SECONDS
    wait_until(lambda: bench.is_served_by_another(first), what="another courier")
    (bench.folder / "finish").touch()
    wait_until(lambda: bench.state() == "succeeded", what="the end of the job")
    assert (bench.folder / "submitted").read_text() == "once\n"
    assert bench.connection.execute("SELECT count(*) FROM attempts").fetchone() == (1,)


def test_gpus_that_this_machine_lacks_are_no_reason_to_refuse_a_run_elsewhere(bench: Bench) -> None:
    bench.supervisor.context.recorder.inventory = Inventory(1.0, "nvml", None, (), "no driver")
    refuse_impossible_gpus(bench.supervisor, SPEC)
    with pytest.raises(RefusedError, match="8 GPUs"):
        refuse_impossible_gpus(bench.supervisor, LOCAL_SPEC)


def test_one_that_died_with_its_agent_is_replaced_by_the_next_agent(bench: Bench) -> None:
    bench.supervisor.turn()
    wait_until(lambda: bench.placement() is not None and bench.attempt().started_at is not None, what="the start")
    first = bench.pid()
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    bench.supervise()
    bench.supervisor.adopt()
    wait_until(lambda: bench.is_served_by_another(first), what="another courier")
    assert bench.state() == "starting"


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
    words, style = placement_words(run, heard + UNKNOWN_AFTER_SECONDS)
    assert "unknown since" in words and style == "warn"
    (bench.folder / "far-state").write_text("running")
    wait_until(lambda: bench.placement() != placement and bench.attempt().started_at is not None, what="the start")
    told = [event.key for event in read_events(bench.connection, run_id="a-1") if event.kind == "placed"]
    assert told == ["pending", "running"]


def test_a_place_that_could_not_be_stored_is_stored_by_the_next_look(bench: Bench) -> None:
    bench.folder.mkdir(parents=True)
    (bench.folder / "far-state").write_text("pending")
    full = "CREATE TEMP TRIGGER full BEFORE INSERT ON placements BEGIN SELECT RAISE(ABORT, 'full'); END"
    bench.connection.execute(full)
    bench.supervisor.turn()
    (live,) = bench.supervisor.runs.attempts()
    wait_until((bench.folder / "placement.json").exists, what="the first report")
    bench.clock += ALIVE_LOOK_SECONDS
    with pytest.raises(sqlite3.Error):
        execution.step(live, Starting(), bench.supervisor.context)
    bench.connection.execute("DROP TRIGGER full")
    bench.clock += ALIVE_LOOK_SECONDS
    execution.step(live, Starting(), bench.supervisor.context)
    placement = read_runs(bench.connection)[-1].placement
    assert placement is not None and placement.state == "pending"
    assert [event.key for event in read_events(bench.connection, run_id="a-1") if event.kind == "placed"] == ["pending"]


def test_a_run_of_this_machine_still_waits_for_its_gpus(bench: Bench) -> None:
    with transaction(bench.connection):
        repository.insert_run(
            bench.connection, run_id="b-1", sequence=2, name="b", spec=LOCAL_SPEC, params={}, now=2.0, actor="me"
        )
    wait_until(lambda: bench.placement() is not None, what="the start of the other")
    states = dict(bench.connection.execute("SELECT run_id, state FROM runs").fetchall())
    assert states == {"a-1": "starting", "b-1": "queued"}


def test_a_kind_that_is_not_known_fails_the_run_and_no_other(bench: Bench) -> None:
    text = json.dumps(replace(SPEC, target={"name": "x", "kind": "carrier-pigeon"}).to_json())
    with transaction(bench.connection):
        repository.insert_run(
            bench.connection, run_id="b-1", sequence=2, name="b", spec=SPEC, params={}, now=2.0, actor="me"
        )
        bench.connection.execute("UPDATE runs SET spec = ? WHERE run_id = 'b-1'", (text,))
    wait_until(lambda: bench.placement() is not None, what="the start of the other")
    states = dict(bench.connection.execute("SELECT run_id, state FROM runs").fetchall())
    assert states == {"a-1": "starting", "b-1": "failed"}
