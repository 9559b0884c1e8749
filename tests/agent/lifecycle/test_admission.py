"""The way from the queue to an attempt, where GPUs that a run held are gone."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.active_run import ActiveRuns
from gputui.agent.lifecycle.admission import MISSING_SECONDS, PEAKS_SECONDS, Admission
from gputui.agent.lifecycle.release import GpuRelease
from gputui.config import Workspace
from gputui.gpu.model import FastTick, GpuFacts, GpuProcess, GpuSample, Inventory
from gputui.runs import repository
from gputui.runs.executors import LOCAL, Executors
from gputui.runs.executors.local import LocalExecutor
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.repository import transaction
from gputui.runs.spec import GpuRequest, RunSpec, spec_of
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import Attempt
from gputui.store.events import read_events
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from tests.stores import open_store

NOW = 1_790_000_000.0
UUIDS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")


class Bench:
    """A run of four GPUs that goes on after an incident, and what becomes of it. ``clock`` is monotonic."""

    def __init__(self, connection: sqlite3.Connection, workspace: Workspace, policy: str, min_gpus: int | None) -> None:
        self.connection = connection
        self.clock = 1000.0
        # Simulated GPUs: their locks are in this home.
        workspace.scenario.touch()
        self.started: list[Attempt] = []
        context = AgentContext.of(
            connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: self.clock
        )
        self.recorder = context.recorder
        runs = ActiveRuns()
        self.admission = Admission(
            context,
            runs,
            ErrorBarrier(context, runs),
            GpuRelease(context, runs, GpuLocks((), None)),
            lambda record, *_: self.started.append(record),
            lambda _run: True,
        )
        spec = RunSpec(
            name="a", launcher="torchrun", program=("x.py",), python="/p", workdir="/", nproc=4,
            recovery={"policy": policy},
            params={"batch_size": 8, "grad_accum": 3}, gpus=GpuRequest(4, min_count=min_gpus),
        )  # fmt: skip
        folder = workspace.run_dir("a-1")
        folder.mkdir()
        write_spec(folder / SPEC_FILE, spec)
        with transaction(connection):
            repository.insert_run(
                connection, run_id="a-1", sequence=1, name="a", spec=spec, params=spec.params, now=NOW, actor="me"
            )
            for target in (RunState.STARTING, RunState.RECOVERING, RunState.QUEUED):
                repository.move(connection, self.run(), target, cause="test", now=NOW)
            repository.set_next_attempt(connection, "a-1", params=spec.params, resume_from=None, not_before=NOW)
            repository.take_leases(connection, "a-1", UUIDS, NOW)

    def run(self) -> Run:
        found = get_run(self.connection, "a-1")
        assert found is not None
        return found

    def see(self, *uuids: str, problem: str | None = None) -> None:
        facts = tuple(GpuFacts(uuid, int(uuid[-1]), "H200") for uuid in uuids)
        self.recorder.take([Inventory(NOW, "nvml", "580.95", facts, problem=problem)])
        self.recorder.take([FastTick(NOW, tuple(GpuSample(uuid, state="ok") for uuid in uuids))])

    def turn(self, after_seconds: float = 0.0) -> None:
        self.clock += after_seconds
        self.admission.turn()


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_store(workspace.database)) as made:
        yield made


def test_a_run_goes_on_without_a_gpu_that_stays_missing_where_its_profile_allows_it(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    bench = Bench(connection, workspace, "standard", min_gpus=2)
    bench.see(*UUIDS[:3])
    bench.turn()
    assert bench.started == [] and "GPU-3 is missing" in (bench.run().waiting_for or "")
    bench.turn(MISSING_SECONDS)
    bench.turn()
    (attempt,) = bench.started
    assert attempt.gpus == UUIDS[:3] and attempt.params == {"batch_size": 8, "grad_accum": 4}
    assert "--nproc-per-node=3" in attempt.launch["argv"]
    assert bench.run().gpu_count == 3 and set(repository.leases(connection)) == set(UUIDS[:3])
    assert [one.run_id for one in read_events(connection) if one.kind == "gpus_reduced"] == [bench.run().run_id]


@pytest.mark.parametrize(("policy", "min_gpus"), [("standard", None), ("standard", 4), ("restart-only", 2)])
def test_a_run_that_may_not_go_on_with_fewer_stops_and_says_why(
    workspace: Workspace, connection: sqlite3.Connection, policy: str, min_gpus: int | None
) -> None:
    bench = Bench(connection, workspace, policy, min_gpus)
    bench.see(*UUIDS[:3])
    bench.turn()
    bench.turn(MISSING_SECONDS - 1)
    assert bench.run().state is RunState.QUEUED
    bench.turn(1)
    assert bench.run().state is RunState.FAILED and bench.started == []
    assert "GPU-3 is missing" in read_events(connection)[-1].message
    assert repository.leases(connection) == {}


def test_a_driver_that_does_not_answer_is_waited_for(workspace: Workspace, connection: sqlite3.Connection) -> None:
    bench = Bench(connection, workspace, "standard", None)
    bench.see(problem="the driver is not loaded")
    bench.turn()
    bench.turn(10 * MISSING_SECONDS)
    assert bench.run().state is RunState.QUEUED
    assert "the driver is not loaded" in (bench.run().waiting_for or "")
    bench.see(*UUIDS)
    bench.turn()
    assert bench.started[0].gpus == UUIDS


def test_a_lost_lease_is_given_up_with_the_attempt_that_does_without(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    bench = Bench(connection, workspace, "standard", None)
    bench.see("GPU-0", "GPU-1", "GPU-2", "GPU-4", "GPU-5")
    bench.turn()
    assert bench.started[0].gpus == ("GPU-0", "GPU-1", "GPU-2", "GPU-4")
    assert set(repository.leases(connection)) == {"GPU-0", "GPU-1", "GPU-2", "GPU-4"}
    (told,) = [one for one in read_events(connection) if one.severity == "warning"]
    assert told.kind == "gpus_replaced" and "GPU-3 is missing" in told.message


def test_a_lease_that_another_run_gets_ends_with_the_attempt_that_has_it(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    bench = Bench(connection, workspace, "standard", None)
    other = replace(spec_of(bench.run()), name="b", gpus=GpuRequest(2))
    with transaction(connection):
        repository.insert_run(
            connection, run_id="b-1", sequence=2, name="b", spec=other, params=other.params, now=NOW, actor="me"
        )
        for target in (RunState.STARTING, RunState.RECOVERING, RunState.QUEUED):
            found = get_run(connection, "b-1")
            assert found is not None
            repository.move(connection, found, target, cause="test", now=NOW)
        repository.set_next_attempt(connection, "b-1", params={}, resume_from=None, not_before=NOW)
        repository.release_leases(connection, "a-1", keep=UUIDS[:3])
        repository.take_leases(connection, "b-1", UUIDS[3:], NOW)
    bench.see(*UUIDS)
    bench.admission.turn()
    assert [record.run_id for record in bench.started] == ["a-1"]
    assert repository.leases(connection) == dict.fromkeys(UUIDS, (("a-1",), None))
    assert connection.execute("SELECT run_id FROM events WHERE kind = 'gpus_replaced'").fetchall() == [("b-1",)]


GIB = 1 << 30
WINDOWS = GpuProcess(7, 20 * GIB // 32, kind="G")
"""What somebody else's desktop holds on a GPU that runs may have."""


@pytest.mark.parametrize(
    ("peak_gib", "processes", "joins"),
    [
        (8, (), True),
        (None, (), False),
        (40, (), False),
        (36, (), True),
        (36, (WINDOWS, replace(WINDOWS, pid=8)), False),
        (8, (replace(WINDOWS, memory_bytes=None),), False),
        (8, None, False),
    ],
)
def test_a_trial_joins_another_where_both_fit_beside_what_others_hold(
    workspace: Workspace,
    connection: sqlite3.Connection,
    peak_gib: int | None,
    processes: tuple[GpuProcess, ...] | None,
    joins: bool,
) -> None:
    bench = Bench(connection, workspace, "standard", None)
    trial = replace(spec_of(bench.run()), gpus=GpuRequest(1), nproc=1, study_id="s", trials_per_gpu=2)
    with transaction(connection):
        repository.move(connection, bench.run(), RunState.STOPPED, cause="test", now=NOW)
        repository.release_leases(connection, "a-1")
        for number, run_id in enumerate(("b-1", "c-1"), 2):
            repository.insert_run(
                connection, run_id=run_id, sequence=number, name="b", spec=trial, params={}, now=NOW, actor="me"
            )
            workspace.run_dir(run_id).mkdir()
            write_spec(workspace.run_dir(run_id) / SPEC_FILE, trial)
    facts = GpuFacts("GPU-0", 0, "H200", memory_total_bytes=80 * GIB)
    sample = GpuSample("GPU-0", state="ok", memory_used_bytes=0, memory_total_bytes=80 * GIB)
    bench.recorder.take([Inventory(NOW, "nvml", "580.95", (facts,)), FastTick(NOW, (sample,))])
    bench.recorder.flush()
    bench.turn()
    assert [record.run_id for record in bench.started] == ["b-1"]
    if peak_gib is not None:
        connection.execute(
            "INSERT INTO metric_sources (source_id, run_id, path, format) VALUES (9, 'b-1', 'm', 'jsonl')"
        )
        connection.execute(
            "INSERT INTO metric_newest (source_id, attempt, rank, data) VALUES (9, 1, 0, ?)",
            (json.dumps({"gpu_mem_peak": peak_gib * GIB}),),
        )
    bench.recorder.processes = {"GPU-0": processes}
    bench.turn(PEAKS_SECONDS)
    assert [record.run_id for record in bench.started][1:] == (["c-1"] if joins else [])
    held = repository.leases(connection)["GPU-0"]
    assert held == ((("b-1", "c-1") if joins else ("b-1",)), "s")


def test_a_queue_of_a_thousand_runs_without_gpus_is_not_started_at_once(
    workspace: Workspace, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(connection, workspace, "standard", None)
    bench.see(*UUIDS)
    bench.turn()
    spec = RunSpec(name="c", launcher="python", program=("x.py",), python="/p", workdir="/")
    with transaction(connection):
        for number in range(1, 1001):
            repository.insert_run(
                connection,
                run_id=f"c-{number}",
                sequence=number + 1,
                name="c",
                spec=spec,
                params={},
                now=NOW,
                actor="me",
            )
    for number in range(1, 41):
        workspace.run_dir(f"c-{number}").mkdir()
        write_spec(workspace.run_dir(f"c-{number}") / SPEC_FILE, spec)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(20)))
    for _ in range(3):
        bench.turn()
    assert [record.run_id for record in bench.started] == ["a-1", *(f"c-{number}" for number in range(1, 21))]
    waiting = connection.execute("SELECT count(*) FROM runs WHERE waiting_for LIKE 'waits: 20 ranks%'").fetchone()
    assert waiting == (980,)


def test_a_run_waits_with_the_reason_while_no_python_can_start_it(
    workspace: Workspace, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    bench = Bench(connection, workspace, "standard", None)
    local = LocalExecutor(str(own), lambda: iter(()))
    bench.admission.context = replace(bench.admission.context, executors=Executors({LOCAL: local}))
    bench.see(*UUIDS)
    own.unlink()
    for _ in range(3):
        bench.turn()
    assert bench.started == [] and connection.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
    assert str(own) in (bench.run().waiting_for or "")
    (told,) = read_events(connection)
    assert told.severity == "warning" and "install gputui again" in told.message
    own.symlink_to(sys.executable)
    bench.turn()
    assert len(bench.started) == 1
