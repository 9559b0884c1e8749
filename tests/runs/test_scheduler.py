"""Placement of runs: the pure decision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.runs import scheduler
from gputui.runs.scheduler import GpuAvailability, Start, Wait, WaitingRuns
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.tables import table
from tests.texts import mentions


def run(
    name: str,
    count: int = 0,
    *,
    uuids: tuple[str, ...] = (),
    memory: int | None = None,
    not_before: float | None = None,
    gpu_count: int | None = None,
    nproc: int = 1,
    share: float = 1.0,
) -> Run:
    spec = RunSpec(
        name=name,
        launcher="python",
        program=("x.py",),
        python="/p",
        workdir="/",
        gpus=GpuRequest(count, uuids, memory, share=share),
        nproc=nproc,
    )
    stored = json.dumps(spec.to_json())
    return Run(
        name,
        1,
        name,
        profile=name,
        state=RunState.QUEUED,
        attempt=0,
        params={},
        spec_json=stored,
        created_at=0.0,
        queued_at=0.0,
        not_before=not_before,
        gpu_count=gpu_count,
    )


def schedule(
    queue: Sequence[Run],
    gpus: Sequence[GpuAvailability] | None,
    *,
    paused: bool = False,
    not_yet: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Start | Wait]:
    return scheduler.schedule(WaitingRuns(tuple(queue), not_yet or {}, paused), gpus, **options)


def gpus(count: int, **changes: GpuAvailability) -> list[GpuAvailability]:
    return [
        changes.get(f"g{index}", GpuAvailability(f"g{index}", index, free_bytes=80 << 30)) for index in range(count)
    ]


def trial(name: str, study: str = "s", **options: Any) -> Run:
    """A trial that takes a quarter of a GPU."""
    trial_run = run(name, 1, share=0.25, **options)
    return replace(trial_run, spec_json=json.dumps(replace(spec_of(trial_run), study_id=study).to_json()))


def shared(index: int, *holders: str, study: str = "s") -> GpuAvailability:
    return GpuAvailability(f"g{index}", index, holders, shared_by=study, shares=dict.fromkeys(holders, 0.25))


def parts(index: int, free_gib: int, **shares: float) -> GpuAvailability:
    """A GPU that runs of no study share."""
    shared_by = "" if shares else None
    return GpuAvailability(
        f"g{index}", index, tuple(shares), free_bytes=free_gib << 30, shared_by=shared_by, shares=shares
    )


def test_a_run_without_gpus_starts_at_once() -> None:
    assert schedule([run("cpu")], None) == [Start(run("cpu"), ())]


def test_runs_without_gpus_start_while_there_is_room_for_their_ranks() -> None:
    outcomes = schedule([run(f"r{i}") for i in range(1000)], gpus(1), cpu_limit=16, cpu_running=4)
    assert [isinstance(outcome, Start) for outcome in outcomes] == [True] * 12 + [False] * 988
    assert isinstance(outcomes[-1], Wait)
    assert mentions(outcomes[-1].reason, "16 ranks")


def test_two_runs_never_share_a_gpu() -> None:
    first, second, third = schedule([run("a", 2), run("b", 2), run("c", 1)], gpus(4))
    assert isinstance(first, Start)
    assert isinstance(second, Start)
    assert isinstance(third, Wait)
    assert not set(first.uuids) & set(second.uuids)


def test_a_large_run_is_not_starved_by_small_ones() -> None:
    occupied = GpuAvailability("g0", 0, holders=("other-1",), free_bytes=80 << 30)
    large, small = schedule([run("large", 4), run("small", 1)], gpus(4, g0=occupied))
    assert isinstance(large, Wait)
    assert isinstance(small, Wait)
    assert mentions(large.reason, "3 of 4", "GPU 0", "other-1")
    assert mentions(small.reason, "0 of 1", "1–3", "large")
    assert large.promised >= {"g1", "g2", "g3"}


@pytest.mark.parametrize("not_before", [0.0, None])
def test_a_run_does_not_wait_for_gpus_whose_holder_waits_for_it(not_before: float | None) -> None:
    """A run that continues after an incident, or restarts before its lease ended, leases what
    others wait for."""
    leased = GpuAvailability("g0", 0, holders=("own",), free_bytes=80 << 30)
    lost = GpuAvailability("g1", 1, holders=("own",), blocked_by="is lost", out_of_service=True)
    large = run("large", 4)
    back = run("own", 1, not_before=not_before)
    starts, waits = schedule([large, back], gpus(4, g0=leased))
    assert starts == Start(back, ("g0",))
    assert isinstance(waits, Wait)
    assert waits.run == large
    starts, waits = schedule([run("large", 3), run("own", 2)], gpus(4, g0=leased, g1=lost))
    assert isinstance(starts, Start)
    assert starts.uuids == ("g0", "g2")
    assert isinstance(waits, Wait)


def test_a_run_that_can_never_start_holds_back_nobody() -> None:
    lost = GpuAvailability("g0", 0, blocked_by="is lost", out_of_service=True)
    large, small = schedule([run("large", 4), run("small", 1)], gpus(4, g0=lost))
    assert isinstance(large, Wait)
    assert "GPU 0 lost" in large.reason
    assert small == Start(run("small", 1), ("g1",))


def test_a_paused_queue_starts_nothing_but_what_goes_on_after_an_incident() -> None:
    recovering = run("r", 1, not_before=5.0)
    outcomes = schedule([run("cpu"), run("a", 1), recovering], gpus(1), paused=True)
    assert [type(outcome) for outcome in outcomes] == [Wait, Wait, Start]
    assert isinstance(outcomes[0], Wait)
    assert "paused" in outcomes[0].reason
    assert outcomes[2] == Start(recovering, ("g0",))


def test_a_recovering_run_whose_other_gpus_are_leased_says_how_many_are_in_service() -> None:
    gone = [
        GpuAvailability(uuid, index=None, holders=(holder,), blocked_by="is missing: x", out_of_service=True)
        for uuid, holder in (("g2", "a"), ("g3", "b"))
    ]
    machine = [GpuAvailability("g0", 0, ("a",)), GpuAvailability("g1", 1, ("b",)), *gone]
    outcomes = schedule([run("a", 2, not_before=5.0), run("b", 2, not_before=6.0)], machine)
    assert [outcome.in_service for outcome in outcomes if isinstance(outcome, Wait)] == [2, 2]


@pytest.mark.parametrize("blocked_by", ["is lost", "is in quarantine (x)", "is used by bob (pid 7)"])
def test_a_lease_on_a_gpu_that_cannot_be_used_is_given_up_for_a_free_one(blocked_by: str) -> None:
    machine = gpus(8, g0=GpuAvailability("g0", 0, ("a",)), g1=GpuAvailability("g1", 1, ("a",), blocked_by))
    (outcome,) = schedule([run("a", 2, not_before=5.0)], machine)
    assert isinstance(outcome, Start)
    assert (outcome.uuids, outcome.replaced) == (("g0", "g2"), (f"GPU 1 {blocked_by}",))


def test_a_run_that_names_its_gpus_waits_for_them() -> None:
    lost = GpuAvailability("g1", 1, ("a",), "is lost", out_of_service=True)
    machine = gpus(8, g0=GpuAvailability("g0", 0, ("a",)), g1=lost)
    (outcome,) = schedule([run("a", 2, uuids=("g0", "g1"), not_before=5.0)], machine)
    assert isinstance(outcome, Wait)
    assert outcome.in_service == 1
    assert "GPU 1 lost" in outcome.reason


def test_a_recovering_run_waits_for_its_own_gpus_to_settle_rather_than_move() -> None:
    settling = GpuAvailability("g0", 0, ("a",), "has not been read yet", is_settling=True)
    first, second = schedule([run("a", 1, not_before=5.0), run("b", 1)], gpus(2, g0=settling))
    assert isinstance(first, Wait)
    assert first.in_service is None
    assert second == Start(run("b", 1), ("g1",))


def test_a_trial_shares_the_gpu_of_its_study_up_to_the_limit() -> None:
    places = [GpuAvailability("g0", 0, ("x-1",)), shared(1, "t-9", study="t"), shared(2, "a", "b")]
    for limit, start in ((3, ("g2",)), (2, None), (1, None)):
        (outcome,) = schedule([trial("c")], places, share_of=lambda _run, _gpu, limit=limit: limit)
        assert (outcome.uuids if isinstance(outcome, Start) else None) == start
    for share in (1.0, 0.25):
        (outcome,) = schedule([run("hand", 1, share=share)], places, share_of=lambda _run, _gpu: 9)
        assert isinstance(outcome, Wait)
        assert mentions(outcome.reason, "GPU 2 ", "2 trials")


@table(
    ("share", "places", "start"),
    [
        (0.5, [parts(0, 40, a=0.5)], ("g0",)), (0.6, [parts(0, 40, a=0.5)], None), (1.0, [parts(0, 40, a=0.5)], None),
        # The GPU with the most free memory is chosen; a run that has just started holds none yet.
        (0.5, [parts(0, 10, a=0.5), parts(1, 70, b=0.25, c=0.25)], ("g1",)),
        (0.5, [parts(0, 79, a=0.5), parts(1, 79)], ("g1",)),
        (0.25, [parts(0, 40, a=0.5, b=0.25)], ("g0",)), (0.3, [parts(0, 40, a=0.5, b=0.25)], None),
        (1 / 3, [parts(0, 40, a=1 / 3, b=1 / 3)], ("g0",)),
        (0.5, [GpuAvailability("g0", 0, ("x",))], None), (0.5, [shared(0, "t")], None),
    ],
)  # fmt: skip
def test_runs_share_a_gpu_while_their_parts_leave_room(
    share: float, places: list[GpuAvailability], start: tuple[str, ...] | None
) -> None:
    (outcome,) = schedule([run("n", 1, share=share)], places)
    assert (outcome.uuids if isinstance(outcome, Start) else None) == start


def test_a_run_that_ran_out_of_memory_beside_others_gets_a_gpu_alone() -> None:
    (outcome,) = schedule([run("n", 1, share=0.5)], [parts(0, 40, a=0.5)], share_of=lambda _run, _gpu: 1)
    assert isinstance(outcome, Wait)
    (outcome,) = schedule([run("n", 1, share=0.5)], [parts(0, 40)], share_of=lambda _run, _gpu: 1)
    assert isinstance(outcome, Start)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 8), st.sets(st.integers(0, 7)))
def test_no_gpu_is_given_twice_and_none_that_is_held(sizes: list[int], count: int, held_indices: set[int]) -> None:
    machine = [GpuAvailability(f"g{i}", i, holders=("x-1",) if i in held_indices else ()) for i in range(count)]
    outcomes = schedule([run(f"r{i}", size) for i, size in enumerate(sizes)], machine)
    given_out = [uuid for outcome in outcomes if isinstance(outcome, Start) for uuid in outcome.uuids]
    assert len(given_out) == len(set(given_out))
    assert not {f"g{i}" for i in held_indices} & set(given_out)
    for outcome in outcomes:
        if isinstance(outcome, Start):
            assert len(outcome.uuids) == spec_of(outcome.run).gpus.count


def test_a_run_that_follows_another_waits_and_holds_back_nobody() -> None:
    first = run("a", 2)
    second = run("b", 2)
    outcomes = schedule([first, second], gpus(2), not_yet={"a": "waits for z"})
    assert outcomes == [Wait(first, "waits for z"), Start(second, ("g0", "g1"))]
