"""Who starts where: the pure decision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.agent.lifecycle.scheduler import CpuRoom, GpuAvailability, Start, Wait, schedule
from gputui.runs.spec import GpuRequest, RunSpec, spec_of
from gputui.store.run_states import RunState
from gputui.store.runs import Run
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
) -> Run:
    spec = RunSpec(
        name=name,
        launcher="python",
        program=("x.py",),
        python="/p",
        workdir="/",
        gpus=GpuRequest(count, uuids, memory),
        nproc=nproc,
    )
    stored = json.dumps(spec.to_json())
    return Run(name, 1, name, name, RunState.QUEUED, 0, {}, stored, 0.0, 0.0, not_before, gpu_count=gpu_count)


def gpus(count: int, **changes: GpuAvailability) -> list[GpuAvailability]:
    return [
        changes.get(f"g{index}", GpuAvailability(f"g{index}", index, free_bytes=80 << 30)) for index in range(count)
    ]


def test_memory_that_no_gpu_in_service_has_holds_back_no_other_run() -> None:
    large = [GpuAvailability(f"g{n}", n, free_bytes=48 << 30, total_bytes=48 << 30) for n in range(2)]
    large[0] = replace(large[0], blocked_by="is in quarantine", out_of_service=True)
    small = [GpuAvailability(f"g{n}", n, free_bytes=24 << 30, total_bytes=24 << 30) for n in (2, 3)]
    waits, starts = schedule([run("a", 2, memory=40 << 30), run("b", 2)], [*large, *small])
    assert isinstance(waits, Wait) and isinstance(starts, Start)


def test_a_run_that_waits_holds_no_gpu_back_that_is_too_small_for_it() -> None:
    large = GpuAvailability("g0", 0, ("other",), free_bytes=0, total_bytes=80 << 30)
    small = GpuAvailability("g1", 1, free_bytes=24 << 30, total_bytes=24 << 30)
    waits, starts = schedule([run("a", 1, memory=40 << 30), run("b", 1)], [large, small])
    assert isinstance(waits, Wait) and isinstance(starts, Start) and starts.uuids == ("g1",)


def test_a_run_says_in_the_plural_what_its_own_gpus_still_hold() -> None:
    own = [
        GpuAvailability(f"g{n}", n, ("a",), "still holds memory of the previous attempt", is_settling=True)
        for n in range(2)
    ]
    (waits,) = schedule([run("a", 2)], [*own, *gpus(5)[2:]])
    assert isinstance(waits, Wait)
    assert waits.reason == "waits for 2 GPUs (0 free; GPUs 0–1 still hold memory of the previous attempt)"


def test_a_run_without_gpus_starts_at_once() -> None:
    assert schedule([run("cpu")], None) == [Start(run("cpu"), ())]


def test_runs_without_gpus_start_while_there_is_room_for_their_ranks() -> None:
    outcomes = schedule([run(f"r{i}") for i in range(1000)], gpus(1), cpu=CpuRoom(16, running=4))
    assert [isinstance(outcome, Start) for outcome in outcomes] == [True] * 12 + [False] * 988
    assert isinstance(outcomes[-1], Wait) and mentions(outcomes[-1].reason, "16 ranks")


def test_a_run_of_many_ranks_is_not_starved_and_holds_back_no_run_with_gpus() -> None:
    large = run("large", nproc=64)
    small, gpu = run("small"), run("gpu", 1)
    waits, waits_too, starts = schedule([large, small, gpu], gpus(1), cpu=CpuRoom(16, running=1))
    assert isinstance(waits, Wait) and isinstance(waits_too, Wait) and starts == Start(gpu, ("g0",))
    assert schedule([large, small], gpus(1), cpu=CpuRoom(16))[0] == Start(large, ())


def test_a_small_machine_runs_more_than_it_has_cores() -> None:
    assert (CpuRoom.of(2, 0).limit, CpuRoom.of(96, 0).limit) == (16, 96)


def test_nothing_starts_blind() -> None:
    (outcome,) = schedule([run("a", 1)], None)
    assert isinstance(outcome, Wait)
    assert "first look" in outcome.reason


def test_two_runs_never_share_a_gpu() -> None:
    first, second, third = schedule([run("a", 2), run("b", 2), run("c", 1)], gpus(4))
    assert isinstance(first, Start) and isinstance(second, Start) and isinstance(third, Wait)
    assert not set(first.uuids) & set(second.uuids)


def test_a_large_run_is_not_starved_by_small_ones() -> None:
    held = GpuAvailability("g0", 0, holders=("other-1",), free_bytes=80 << 30)
    large, small = schedule([run("large", 4), run("small", 1)], gpus(4, g0=held))
    assert isinstance(large, Wait) and isinstance(small, Wait)
    assert mentions(large.reason, "4 GPUs (3 free; GPU 0", "other-1")
    assert mentions(small.reason, "earlier run")


def test_gpus_with_the_same_obstacle_are_named_together() -> None:
    held = {f"g{index}": GpuAvailability(f"g{index}", index, holders=("other-1",)) for index in range(3)}
    lost = GpuAvailability("g3", 3, blocked_by="is lost", out_of_service=True)
    (outcome,) = schedule([run("large", 4)], gpus(5, **held, g3=lost))
    assert isinstance(outcome, Wait)
    assert mentions(outcome.reason, "4 GPUs (1 free; GPUs 0–2 are", "other-1; GPU 3 is lost)")


@pytest.mark.parametrize("not_before", [0.0, None])
def test_a_run_does_not_wait_for_gpus_whose_holder_waits_for_it(not_before: float | None) -> None:
    """What goes on after an incident, or was restarted before its GPUs were given back, leases what others wait for."""
    own = GpuAvailability("g0", 0, holders=("own",), free_bytes=80 << 30)
    lost = GpuAvailability("g1", 1, holders=("own",), blocked_by="is lost", out_of_service=True)
    large, back = run("large", 4), run("own", 1, not_before=not_before)
    starts, waits = schedule([large, back], gpus(4, g0=own))
    assert starts == Start(back, ("g0",)) and isinstance(waits, Wait) and waits.run == large
    starts, waits = schedule([run("large", 3), run("own", 2)], gpus(4, g0=own, g1=lost))
    assert isinstance(starts, Start) and starts.uuids == ("g0", "g2") and isinstance(waits, Wait)


def test_a_run_that_can_never_start_holds_back_nobody() -> None:
    lost = GpuAvailability("g0", 0, blocked_by="is lost", out_of_service=True)
    large, small = schedule([run("large", 4), run("small", 1)], gpus(4, g0=lost))
    assert isinstance(large, Wait) and "GPU 0 is lost" in large.reason
    assert small == Start(run("small", 1), ("g1",))


def test_a_paused_queue_starts_nothing_but_what_goes_on_after_an_incident() -> None:
    recovering = run("r", 1, not_before=5.0)
    outcomes = schedule([run("cpu"), run("a", 1), recovering], gpus(1), paused=True)
    assert [type(outcome) for outcome in outcomes] == [Wait, Wait, Start]
    assert isinstance(outcomes[0], Wait) and "paused" in outcomes[0].reason
    assert outcomes[2] == Start(recovering, ("g0",))


def test_a_run_that_asks_elsewhere_is_not_held_back() -> None:
    held = GpuAvailability("g0", 0, holders=("other-1",))
    first, second = schedule([run("a", 1, uuids=("g0",)), run("b", 1, uuids=("g3",))], gpus(4, g0=held))
    assert isinstance(first, Wait)
    assert second == Start(run("b", 1, uuids=("g3",)), ("g3",))


def test_a_recovering_run_returns_to_its_own_gpus() -> None:
    own = GpuAvailability("g2", 2, holders=("a",))
    (outcome,) = schedule([run("a", 1)], gpus(4, g2=own))
    assert outcome == Start(run("a", 1), ("g2",))


def deadlock(*more: GpuAvailability) -> list[GpuAvailability]:
    """Each of two runs leases a healthy GPU and one that is gone."""
    return [
        GpuAvailability("g0", 0, ("a",)),
        GpuAvailability("g1", 1, ("b",)),
        *more,
        missing("g2", "a"),
        missing("g3", "b"),
    ]


def test_of_runs_that_wait_for_a_gpu_of_each_other_the_first_starts() -> None:
    first, second = schedule([run("a", 2, not_before=5.0), run("b", 2, not_before=6.0)], deadlock())
    assert isinstance(first, Start) and (first.uuids, first.taken_from) == (("g0", "g1"), (("b", "g1"),))
    assert isinstance(second, Wait)


def test_a_lease_is_not_taken_where_waiting_helps_or_the_holder_does_not_wait() -> None:
    queue = [run("a", 2, not_before=5.0), run("b", 2, not_before=6.0)]
    for more in (GpuAvailability("g4", 4, ("c",)), GpuAvailability("g4", 4, (), "is used by bob (pid 7)")):
        assert all(isinstance(outcome, Wait) for outcome in schedule(queue, deadlock(more)))
    assert isinstance(schedule(queue[:1], deadlock())[0], Wait)
    # With three that wait, the first that can be served is.
    three = [run("big", 4, not_before=4.0), *queue]
    standings = deadlock(GpuAvailability("g5", 5, ("big",)), missing("g6", "big"))
    big, first, second = schedule(three, standings)
    assert isinstance(big, Wait) and isinstance(second, Wait)
    assert isinstance(first, Start) and len(first.uuids) == 2 and "g0" in first.uuids


def missing(uuid: str, holder: str) -> GpuAvailability:
    return GpuAvailability(uuid, None, (holder,), "is missing: the driver does not list it", out_of_service=True)


def test_a_run_whose_gpu_is_missing_gets_as_many_as_it_asked_for_or_waits() -> None:
    own = [GpuAvailability(f"g{i}", i, ("a",)) for i in range(3)]
    recovering = run("a", 4, not_before=5.0)
    (outcome,) = schedule([recovering], [*own, missing("g9", "a")])
    assert isinstance(outcome, Wait) and outcome.in_service == 3
    assert mentions(outcome.reason, "4 GPUs (3 free; g9 is missing")
    (outcome,) = schedule([recovering], [*own, GpuAvailability("g3", 3), missing("g9", "a")])
    assert isinstance(outcome, Start) and outcome.uuids == ("g0", "g1", "g2", "g3")
    assert len(outcome.replaced) == 1 and mentions(outcome.replaced[0], "g9 is missing")


def test_only_what_exclude_gpu_noted_makes_a_run_smaller() -> None:
    own = [GpuAvailability(f"g{i}", i, ("a",)) for i in range(3)]
    assert schedule([run("a", 4, not_before=5.0, gpu_count=3)], own) == [
        Start(run("a", 4, not_before=5.0, gpu_count=3), ("g0", "g1", "g2"))
    ]
    assert isinstance(schedule([run("a", 4, not_before=5.0)], own)[0], Wait)


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
    assert isinstance(outcome, Wait) and outcome.in_service == 1 and "GPU 1 is lost" in outcome.reason


def test_a_recovering_run_waits_for_its_own_gpus_to_settle_rather_than_move() -> None:
    settling = GpuAvailability("g0", 0, ("a",), "still holds memory of the previous attempt", is_settling=True)
    first, second = schedule([run("a", 1, not_before=5.0), run("b", 1)], gpus(2, g0=settling))
    assert isinstance(first, Wait) and first.in_service is None
    assert second == Start(run("b", 1), ("g1",))


def test_a_lost_or_full_gpu_is_passed_over() -> None:
    lost = GpuAvailability("g0", 0, blocked_by="is lost")
    full = GpuAvailability("g1", 1, free_bytes=4 << 30)
    (outcome,) = schedule([run("a", 1, memory=10 << 30)], gpus(3, g0=lost, g1=full))
    assert outcome == Start(run("a", 1, memory=10 << 30), ("g2",))
    (outcome,) = schedule([run("a", 3, memory=10 << 30)], gpus(3, g0=lost, g1=full))
    assert isinstance(outcome, Wait)
    assert mentions(outcome.reason, "GPU 0 is lost; GPU 1 has 4.0 of 10.0 GiB")


def test_unknown_free_memory_does_not_hold_a_run_back() -> None:
    (outcome,) = schedule([run("a", 1, memory=10 << 30)], [GpuAvailability("g0", 0)])
    assert isinstance(outcome, Start)


def trial(name: str, study: str = "s", **given: Any) -> Run:
    """A trial with one GPU."""
    one = run(name, 1, **given)
    return replace(one, spec_json=json.dumps(replace(spec_of(one), study_id=study).to_json()))


def shared(index: int, *holders: str, study: str = "s") -> GpuAvailability:
    return GpuAvailability(f"g{index}", index, holders, shared_by=study)


def test_a_trial_shares_the_gpu_of_its_study_up_to_the_limit() -> None:
    places = [GpuAvailability("g0", 0, ("x-1",)), shared(1, "t-9", study="t"), shared(2, "a", "b")]
    for limit, start in ((3, ("g2",)), (2, None), (1, None)):
        (outcome,) = schedule([trial("c")], places, share_of=lambda _run, _gpu, limit=limit: limit)
        assert (outcome.uuids if isinstance(outcome, Start) else None) == start
    (outcome,) = schedule([run("hand", 1)], places, share_of=lambda _run, _gpu: 9)
    assert isinstance(outcome, Wait) and mentions(outcome.reason, "GPU 2 is shared by 2 trials")


def test_a_trial_takes_a_free_gpu_rather_than_share_one_and_the_emptier_of_two() -> None:
    busy = [shared(0, "a", "b"), shared(1, "c")]
    (outcome,) = schedule([trial("d")], [*busy, GpuAvailability("g2", 2)], share_of=lambda _run, _gpu: 4)
    assert outcome == Start(trial("d"), ("g2",))
    assert schedule([trial("d")], busy, share_of=lambda _run, _gpu: 4) == [Start(trial("d"), ("g1",))]


def test_a_run_that_waits_before_a_trial_keeps_it_from_sharing() -> None:
    hand, late = run("hand", 1), trial("b")
    waits, too = schedule([hand, late], [shared(0, "a")], share_of=lambda _run, _gpu: 2)
    assert isinstance(waits, Wait) and isinstance(too, Wait)
    assert mentions(too.reason, "promised to an earlier run")
    outcomes = schedule([hand, late], [shared(0, "a"), GpuAvailability("g1", 1)], share_of=lambda _run, _gpu: 2)
    assert outcomes == [Start(hand, ("g1",)), Start(late, ("g0",))]


def test_a_trial_that_goes_on_returns_to_its_fellows_before_others_but_not_into_a_crowd() -> None:
    hand, back = run("hand", 1), trial("b", not_before=1.0)
    assert schedule([hand, back], [shared(0, "a", "b")], share_of=lambda _run, _gpu: 2)[0] == Start(back, ("g0",))
    first, _ = schedule([hand, back], [shared(0, "a", "b")], share_of=lambda _run, _gpu: 1)
    assert isinstance(first, Wait) and first.run is hand, "what a person launched is first in the line again"


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 8), st.sets(st.integers(0, 7)))
def test_no_gpu_is_given_twice_and_none_that_is_held(sizes: list[int], count: int, held: set[int]) -> None:
    machine = [GpuAvailability(f"g{i}", i, holders=("x-1",) if i in held else ()) for i in range(count)]
    outcomes = schedule([run(f"r{i}", size) for i, size in enumerate(sizes)], machine)
    given_out = [uuid for outcome in outcomes if isinstance(outcome, Start) for uuid in outcome.uuids]
    assert len(given_out) == len(set(given_out))
    assert not {f"g{i}" for i in held} & set(given_out)
    for outcome in outcomes:
        if isinstance(outcome, Start):
            assert len(outcome.uuids) == spec_of(outcome.run).gpus.count


def test_a_run_that_follows_another_waits_and_holds_back_nobody() -> None:
    first, second = run("a", 2), run("b", 2)
    outcomes = schedule([first, second], gpus(2), predecessor=lambda one: "waits for z" if one is first else None)
    assert outcomes == [Wait(first, "waits for z"), Start(second, ("g0", "g1"))]
