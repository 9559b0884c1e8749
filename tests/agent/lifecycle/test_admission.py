"""The way from the queue to an attempt, where GPUs that a run held are gone."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.admission import MISSING_SECONDS, Admission
from gputui.agent.lifecycle.gpus import GpuHolds
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, GpuProcess, Inventory
from gputui.runs import repository
from gputui.runs.gpu_locks import UNKNOWN_HOLDER, GpuLocks
from gputui.runs.repository import transaction
from gputui.runs.shim_locks import note_holder
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store.attempts import Attempt
from gputui.store.events import read_events
from gputui.store.hardware import read_gpus
from gputui.store.rows import insert
from gputui.store.run_states import RunState
from gputui.store.series import GpuSample
from tests.homes import GIB, NOW, Home, add_run, add_source
from tests.texts import mentions

RECOVERED = (RunState.STARTING, RunState.RECOVERING, RunState.QUEUED)
UUIDS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")

DESKTOP = GpuProcess(7, 10 * GIB, kind="G")
"""What somebody else's desktop holds on a GPU that runs may have."""


class WaitingHome(Home):
    """A home with a run of four GPUs that goes on after an incident, and what becomes of it."""

    def __init__(self, workspace: Workspace, policy: str = "standard", min_gpus: int | None = None) -> None:
        super().__init__(workspace)
        # Simulated GPUs: their locks are in this home.
        workspace.scenario.touch()
        self.started: list[Attempt] = []
        context = self.context()
        self.recorder = context.recorder
        self.admission = Admission(
            context,
            ErrorBarrier(context),
            GpuHolds(context),
            GpuLocks.of(workspace),
            lambda record, *_: self.started.append(record),
        )
        spec = RunSpec(
            name="a", launcher="torchrun", program=("x.py",), python="/p", workdir="/", nproc=4,
            recovery={"policy": policy},
            params={"batch_size": 8, "grad_accum": 3}, gpus=GpuRequest(4, min_count=min_gpus),
        )  # fmt: skip
        add_run(self.connection, "a-1", *RECOVERED, spec=spec, workspace=workspace)
        with transaction(self.connection) as connection:
            repository.set_next_attempt(connection, "a-1", params=spec.params, resume_from=None, not_before=NOW)
            repository.take_leases(connection, "a-1", UUIDS, NOW)

    def see(self, *uuids: str, problem: str | None = None) -> None:
        facts = tuple(GpuFacts(uuid, int(uuid[-1]), "H200") for uuid in uuids)
        self.recorder.take([Inventory(NOW, "nvml", "580.95", facts, problem=problem)])
        self.recorder.take([FastTick(NOW, tuple(GpuSample(uuid, state="ok") for uuid in uuids))])

    def turn(self, after_seconds: float = 0.0) -> None:
        self.uptime += after_seconds
        self.admission.poll()


@pytest.fixture
def home(workspace: Workspace) -> Iterator[WaitingHome]:
    with closing(WaitingHome(workspace)) as home:
        yield home


def test_a_run_goes_on_without_a_gpu_that_stays_missing_where_its_profile_allows_it(workspace: Workspace) -> None:
    home = WaitingHome(workspace, min_gpus=2)
    home.see(*UUIDS[:3])
    home.turn()
    assert home.started == []
    assert "GPU-3 missing" in (home.run_of().waiting_for or "")
    home.turn(MISSING_SECONDS)
    home.turn()
    (attempt,) = home.started
    assert attempt.gpus == UUIDS[:3]
    assert attempt.params == {"batch_size": 8, "grad_accum": 4}
    assert "--nproc-per-node=3" in attempt.launch["argv"]
    assert home.run_of().gpu_count == 3
    assert set(repository.leases(home.connection)) == set(UUIDS[:3])
    assert [event.run_id for event in read_events(home.connection) if event.kind == "gpus_reduced"] == [
        home.run_of().run_id
    ]


@pytest.mark.parametrize(("policy", "min_gpus"), [("standard", None), ("standard", 4), ("restart-only", 2)])
def test_a_run_that_may_not_go_on_with_fewer_stops_and_says_why(
    workspace: Workspace, policy: str, min_gpus: int | None
) -> None:
    home = WaitingHome(workspace, policy, min_gpus)
    home.see(*UUIDS[:3])
    home.turn()
    home.turn(MISSING_SECONDS - 1)
    assert home.run_of().state is RunState.QUEUED
    home.turn(1)
    assert home.run_of().state is RunState.FAILED
    assert home.started == []
    assert "GPU-3 is missing" in read_events(home.connection)[-1].message
    assert repository.leases(home.connection) == {}


def test_no_attempt_starts_beside_one_that_lives_although_the_database_does_not_know(
    home: WaitingHome, connection: sqlite3.Connection
) -> None:
    home.see(*UUIDS)
    folder = home.workspace.run_dir("a-1") / "attempts" / "7"
    folder.mkdir(parents=True)
    (folder / "attempt.json").touch()
    with (folder / "attempt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        home.turn()
        assert home.started == []
        assert "attempt 7" in (home.run_of().waiting_for or "")
    home.turn()
    assert [attempt.number for attempt in home.started] == [8]


def test_the_views_know_which_gpus_another_home_holds(home: WaitingHome, connection: sqlite3.Connection) -> None:
    home.see(*UUIDS)
    home.recorder.flush()
    locks = home.admission.locks.take(["GPU-1", "GPU-2"])
    note_holder(locks.descriptors[0], "vit-1", "the home /data/home")

    def held() -> dict[str, str | None]:
        home.admission.note_locks()
        return {gpu.uuid: gpu.locked_by for gpu in read_gpus(connection, NOW)}

    first = held()
    assert mentions(first.pop("GPU-1"), "vit-1 of the home /data/home")
    assert first == {"GPU-0": None, "GPU-2": UNKNOWN_HOLDER, "GPU-3": None}
    locks.close()
    assert set(held().values()) == {None}


def test_of_runs_that_wait_for_a_gpu_of_each_other_the_first_starts(
    home: WaitingHome, connection: sqlite3.Connection
) -> None:
    for run_id, uuids in (("a-1", ("GPU-0", "GPU-2")), ("b-1", ("GPU-1", "GPU-3"))):
        spec = replace(spec_of(home.run_of()), gpus=GpuRequest(2), nproc=2)
        if run_id == "b-1":
            add_run(connection, run_id, *RECOVERED, spec=spec, workspace=home.workspace)
        with transaction(connection):
            repository.release_leases(connection, run_id)
            repository.set_next_attempt(connection, run_id, params=spec.params, resume_from=None, not_before=NOW)
            repository.set_gpu_count(connection, run_id, 2)
            repository.take_leases(connection, run_id, uuids, NOW)
    home.see(*UUIDS[:2])
    for seconds in (0, MISSING_SECONDS, 1):
        assert home.started == []
        home.turn(seconds)
    (attempt,) = home.started
    assert attempt.run_id == "a-1"
    assert attempt.gpus == UUIDS[:2]
    assert connection.execute("SELECT count(*) FROM events WHERE kind = 'gpus_replaced'").fetchone() == (2,)


@pytest.mark.parametrize(
    ("peak_gib", "processes", "joins"), [(8, (), True), (None, (), False), (36, (DESKTOP,), False)]
)
def test_a_trial_joins_another_where_both_fit_beside_what_others_hold(
    home: WaitingHome,
    connection: sqlite3.Connection,
    peak_gib: int | None,
    processes: tuple[GpuProcess, ...] | None,
    joins: bool,
) -> None:
    trial = replace(spec_of(home.run_of()), gpus=GpuRequest(1, share=0.5), nproc=1, study_id="s")
    with transaction(connection):
        repository.move(connection, home.run_of(), RunState.STOPPED, cause="test", now=NOW)
        repository.release_leases(connection, "a-1")
    for run_id in ("b-1", "c-1"):
        add_run(connection, run_id, spec=trial, workspace=home.workspace)
    facts = GpuFacts("GPU-0", 0, "H200", memory_total_bytes=80 * GIB)
    sample = GpuSample("GPU-0", state="ok", memory_used_bytes=0, memory_total_bytes=80 * GIB)
    home.recorder.take([Inventory(NOW, "nvml", "580.95", (facts,)), FastTick(NOW, (sample,))])
    home.recorder.flush()
    home.turn()
    assert [record.run_id for record in home.started] == ["b-1"]
    if peak_gib is not None:
        data = json.dumps({"gpu_mem_peak": peak_gib * GIB})
        insert(connection, "metric_newest", source_id=add_source(connection, "b-1"), attempt=1, rank=0, data=data)
    home.recorder.processes = {"GPU-0": processes}
    home.turn()
    expected = ["c-1"] if joins else []
    assert [record.run_id for record in home.started][1:] == expected
    lease = repository.leases(connection)["GPU-0"]
    assert lease[:2] == ((("b-1", "c-1") if joins else ("b-1",)), "s")
