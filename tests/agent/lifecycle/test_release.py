"""The GPUs of an attempt that has ended are free only when none of its processes is left."""

from __future__ import annotations

import json
import selectors
import sqlite3
import subprocess

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import release
from gputui.agent.lifecycle.active_run import ActiveRuns
from gputui.agent.lifecycle.release import DEADLINE_SECONDS, HELD_LOOK_SECONDS, LOOK_SECONDS, GpuRelease
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import Workspace
from gputui.gpu.model import GpuProcess, GpuSample
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.identity import identify
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from tests.stores import open_store
from tests.texts import mentions

NOW = 1_790_000_000.0


def ended_run(connection: sqlite3.Connection, gpus: tuple[str, ...] = ("GPU-1",)) -> None:
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/")
    with transaction(connection):
        repository.insert_run(connection, run_id="a-1", sequence=1, name="a", spec=spec, params={}, now=NOW, actor="me")
        repository.take_leases(connection, "a-1", gpus, NOW)
        run = get_run(connection, "a-1")
        assert run is not None
        repository.move(connection, run, RunState.FAILED, cause="unkillable", now=NOW)


def test_a_process_that_cannot_be_killed_holds_its_gpus_until_it_is_gone(workspace: Workspace) -> None:
    """Known by the list of its shim alone: it may be another user's, or have wiped its environment."""
    connection = open_store(workspace.database)
    ended_run(connection, ("GPU-1", "GPU-2"))
    clock = [0.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: clock[0])
    (workspace.state / "locks").mkdir()
    here = GpuLocks((workspace.state / "locks",), None)
    draining = GpuRelease(context, ActiveRuns(), here)
    folder = workspace.run_dir("a-1") / "attempts" / "1"
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        entry = {"pid": identity.pid, "start_ticks": identity.start_ticks, "rank": None, "local_world_size": None}
        (folder / "processes.json").write_text(json.dumps({"boot_id": identity.boot_id, "processes": [entry]}))
        draining.begin("a-1", 1, {"GPU-1": None})
        assert draining.next_look_seconds() == LOOK_SECONDS
        for _ in range(3):
            clock[0] += DEADLINE_SECONDS + 1
            assert not draining.turn()
        assert draining.uuids() == {"GPU-1"} and draining.next_look_seconds() == HELD_LOOK_SECONDS
        assert here.holder("GPU-1") is not None
        # The next attempt had another GPU, and ends too.
        draining.begin("a-1", 2, {"GPU-2": None})
        assert draining.uuids() == {"GPU-1", "GPU-2"}
        clock[0] += DEADLINE_SECONDS + 1
        assert draining.turn() and draining.uuids() == {"GPU-1"}
        assert repository.leases(connection) == {"GPU-1": (("a-1",), None)}
        process.kill()
    clock[0] += DEADLINE_SECONDS + 1
    assert draining.turn() and draining.next_look_seconds() is None
    assert repository.leases(connection) == {} and here.holder("GPU-1") is None
    ((kind, message),) = connection.execute("SELECT kind, message FROM events WHERE run_id = 'a-1'").fetchall()
    assert kind == "gpus_released" and mentions(message, "attempt 1", "GPU-1")
    connection.close()


def test_a_trial_leaves_a_shared_gpu_while_others_hold_memory_there(workspace: Workspace) -> None:
    connection = open_store(workspace.database)
    clock = [0.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: clock[0])
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/", study_id="s", trials_per_gpu=2)
    with transaction(connection):
        for number, run_id in enumerate(("a-1", "b-1")):
            repository.insert_run(
                connection, run_id=run_id, sequence=number, name="a", spec=spec, params={}, now=NOW, actor="me"
            )
            repository.take_leases(connection, run_id, ["GPU-1"], NOW, shared=True)
        for target in (RunState.STARTING, RunState.SUCCEEDED):
            run = get_run(connection, "a-1")
            assert run is not None
            repository.move(connection, run, target, cause="test", now=NOW)
    draining = GpuRelease(context, ActiveRuns(), GpuLocks((), None))
    context.recorder.fast = {"GPU-1": GpuSample(uuid="GPU-1", memory_used_bytes=30 << 30, state="ok")}
    context.recorder.fast_at = NOW - 1
    draining.begin("a-1", 1, {"GPU-1": 0})
    assert not draining.turn(), "not read since"
    context.recorder.fast_at = NOW
    draining.runs.of("a-1").releasing[0].ended_at = NOW - 1
    assert draining.turn() and draining.uuids() == set()
    assert repository.leases(connection) == {"GPU-1": (("b-1",), "s")}
    connection.close()


def test_what_a_process_stuck_in_the_kernel_does_not_hold_is_given_back(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four GPUs it is on one by the driver's list and on one by its memory; of one nothing is known."""
    connection = open_store(workspace.database)
    gpus = ("GPU-1", "GPU-2", "GPU-3", "GPU-4")
    ended_run(connection, gpus)
    clock = [0.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: clock[0])
    (workspace.state / "locks").mkdir()
    locks = GpuLocks((workspace.state / "locks",), None)
    draining = GpuRelease(context, ActiveRuns(), locks)
    folder = workspace.run_dir("a-1") / "attempts" / "1"
    folder.mkdir(parents=True)
    stuck: set[int] = set()
    monkeypatch.setattr(release, "is_being_killed", lambda one: one.pid in stuck)
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        entry = {"pid": identity.pid, "start_ticks": identity.start_ticks, "rank": None, "local_world_size": None}
        (folder / "processes.json").write_text(json.dumps({"boot_id": identity.boot_id, "processes": [entry]}))
        used = {"GPU-1": 0, "GPU-2": 0, "GPU-3": 30 << 30, "GPU-4": 0}
        samples = (GpuSample(uuid=uuid, memory_used_bytes=size, state="ok") for uuid, size in used.items())
        context.recorder.fast = {sample.uuid: sample for sample in samples}
        context.recorder.processes = {"GPU-1": (), "GPU-2": (GpuProcess(process.pid),), "GPU-3": (), "GPU-4": None}
        context.recorder.fast_at = NOW + 1
        draining.begin("a-1", 1, dict.fromkeys(gpus, 0))
        clock[0] += DEADLINE_SECONDS + 1
        assert not draining.turn() and set(repository.leases(connection)) == set(gpus), "it may run on"
        stuck.add(process.pid)
        clock[0] += DEADLINE_SECONDS + 1
        assert draining.turn()
        assert set(repository.leases(connection)) == draining.held() == {"GPU-2", "GPU-3", "GPU-4"}
        assert [uuid for uuid in gpus if locks.holder(uuid) is None] == ["GPU-1"]
        process.kill()
    clock[0] += DEADLINE_SECONDS + 1
    assert draining.turn() and repository.leases(connection) == {}
    connection.close()


def test_the_next_agent_knows_what_a_process_of_an_earlier_attempt_holds(workspace: Workspace) -> None:
    """The run recovers on another GPU, so that it has no lease for the one that it left."""
    connection = open_store(workspace.database)
    ended_run(connection)
    with transaction(connection):
        repository.release_leases(connection, "a-1")
        run = get_run(connection, "a-1")
        assert run is not None
        repository.move(connection, run, RunState.QUEUED, cause="again", now=NOW)
        launch = Launch(("x",), {}, "/", 1.0)
        for number, gpus in ((1, ("GPU-1", "GPU-2")), (2, ("GPU-3",))):
            repository.insert_attempt(connection, run, number=number, gpus=gpus, launch=launch, now=NOW)
            repository.end_attempt(connection, "a-1", number, state="failed", ended_at=NOW, exit_record=None)
    folder = workspace.run_dir("a-1") / "attempts" / "1"
    folder.mkdir(parents=True)
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        entry = {"pid": identity.pid, "start_ticks": identity.start_ticks, "rank": None, "local_world_size": None}
        (folder / "processes.json").write_text(json.dumps({"boot_id": identity.boot_id, "processes": [entry]}))
        supervisor = Supervisor(context, selectors.DefaultSelector())
        supervisor.adopt()
        assert supervisor.release.uuids() == {"GPU-1", "GPU-2"}
        process.kill()
    connection.close()


def test_a_reading_from_before_the_clock_was_set_back_releases_nothing(workspace: Workspace) -> None:
    connection = open_store(workspace.database)
    ended_run(connection)
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: 0.0)
    draining = GpuRelease(context, ActiveRuns(), GpuLocks((workspace.state / "locks",), None))
    context.recorder.fast = {"GPU-1": GpuSample(uuid="GPU-1", memory_used_bytes=0, state="ok")}
    draining.begin("a-1", 1, {"GPU-1": 0})
    context.recorder.fast_at = NOW + 3600
    assert not draining.turn()
    draining = GpuRelease(replace(context, now=lambda: NOW + 5), draining.runs, draining.locks)
    context.recorder.fast_at = NOW + 4
    assert draining.turn() and repository.leases(connection) == {}
    connection.close()
