"""Who starts where: the pure decision."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.agent.scheduling import GpuStanding, Start, Wait, schedule
from gputui.runs.repository import RunRecord
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.states import RunState


def run(
    name: str,
    count: int = 0,
    *,
    uuids: tuple[str, ...] = (),
    memory: int | None = None,
    not_before: float | None = None,
) -> RunRecord:
    spec = RunSpec(
        name=name, launcher="python", program=("x.py",), python="/p", workdir="/", gpus=GpuRequest(count, uuids, memory)
    )
    return RunRecord(name, name, RunState.QUEUED, 0, spec, {}, 0.0, 0.0, not_before, None, None, None)


def gpus(count: int, **changes: GpuStanding) -> list[GpuStanding]:
    return [changes.get(f"g{index}", GpuStanding(f"g{index}", index, free_bytes=80 << 30)) for index in range(count)]


def test_a_run_without_gpus_starts_at_once() -> None:
    assert schedule([run("cpu")], None) == [Start(run("cpu"), ())]


def test_nothing_starts_blind() -> None:
    (outcome,) = schedule([run("a", 1)], None)
    assert isinstance(outcome, Wait)
    assert "first look" in outcome.reason


def test_two_runs_never_share_a_gpu() -> None:
    first, second, third = schedule([run("a", 2), run("b", 2), run("c", 1)], gpus(4))
    assert isinstance(first, Start) and isinstance(second, Start) and isinstance(third, Wait)
    assert not set(first.uuids) & set(second.uuids)


def test_a_large_run_is_not_starved_by_small_ones() -> None:
    held = GpuStanding("g0", 0, holder="other-1", free_bytes=80 << 30)
    large, small = schedule([run("large", 4), run("small", 1)], gpus(4, g0=held))
    assert isinstance(large, Wait) and isinstance(small, Wait)
    assert "waits for 4 GPUs (3 free; GPU 0 is leased to other-1)" in large.reason
    assert "promised to an earlier run" in small.reason


def test_a_run_that_can_never_start_holds_back_nobody() -> None:
    lost = GpuStanding("g0", 0, obstacle="is lost", out_of_service=True)
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
    held = GpuStanding("g0", 0, holder="other-1")
    first, second = schedule([run("a", 1, uuids=("g0",)), run("b", 1, uuids=("g3",))], gpus(4, g0=held))
    assert isinstance(first, Wait)
    assert second == Start(run("b", 1, uuids=("g3",)), ("g3",))


def test_a_recovering_run_returns_to_its_own_gpus() -> None:
    own = GpuStanding("g2", 2, holder="a")
    (outcome,) = schedule([run("a", 1)], gpus(4, g2=own))
    assert outcome == Start(run("a", 1), ("g2",))


def test_a_lost_or_full_gpu_is_passed_over() -> None:
    lost = GpuStanding("g0", 0, obstacle="is lost")
    full = GpuStanding("g1", 1, free_bytes=4 << 30)
    (outcome,) = schedule([run("a", 1, memory=10 << 30)], gpus(3, g0=lost, g1=full))
    assert outcome == Start(run("a", 1, memory=10 << 30), ("g2",))
    (outcome,) = schedule([run("a", 3, memory=10 << 30)], gpus(3, g0=lost, g1=full))
    assert isinstance(outcome, Wait)
    assert "GPU 0 is lost; GPU 1 has 4.0 of 10.0 GiB free" in outcome.reason


def test_unknown_free_memory_does_not_hold_a_run_back() -> None:
    (outcome,) = schedule([run("a", 1, memory=10 << 30)], [GpuStanding("g0", 0)])
    assert isinstance(outcome, Start)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 8), st.sets(st.integers(0, 7)))
def test_no_gpu_is_given_twice_and_none_that_is_held(sizes: list[int], count: int, held: set[int]) -> None:
    machine = [GpuStanding(f"g{i}", i, holder="x-1" if i in held else None) for i in range(count)]
    outcomes = schedule([run(f"r{i}", size) for i, size in enumerate(sizes)], machine)
    given_out = [uuid for outcome in outcomes if isinstance(outcome, Start) for uuid in outcome.uuids]
    assert len(given_out) == len(set(given_out))
    assert not {f"g{i}" for i in held} & set(given_out)
    for outcome in outcomes:
        if isinstance(outcome, Start):
            assert len(outcome.uuids) == outcome.run.spec.gpus.count
