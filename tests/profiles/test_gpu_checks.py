"""GPUs that a run asks for: whether they are free and large enough, and which are recommended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.gpu_checks import Expectation, GpuSituation, check_gpus, check_memory, expect, likely_gpus
from gputui.profiles.recommend import recommend, usable
from gputui.runs.gpu_conditions import GpuCondition
from gputui.runs.scheduler import WaitingRuns
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.store.gpu_use import PastPeak
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.store.series import GpuProcess, GpuSample, GpuSlowSample
from tests.tables import table
from tests.texts import mentions

GIB = 2**30
GPUS = [GpuFacts(uuid=f"GPU-{index}", index=index, name="H200", memory_total_bytes=80 * GIB) for index in range(4)]

EMPTY_QUEUE = WaitingRuns()


def situation(*gpus: GpuFacts, waiting: WaitingRuns = EMPTY_QUEUE, **changes: dict[int, Any]) -> GpuSituation:
    """Empty, idle GPUs (four of 80 GiB unless given), but for ``changes``: of a field of `GpuCondition`, by index."""
    conditions = []
    for facts in gpus or GPUS:
        ok = GpuSample(facts.uuid, memory_used_bytes=GIB // 2, memory_total_bytes=facts.memory_total_bytes)
        of_this = {name: values[facts.index] for name, values in changes.items() if facts.index in values}
        conditions.append(replace(GpuCondition(facts, ok), **of_this))
    return GpuSituation(conditions, waiting)


OF_80_GIB = situation()
SPEC = RunSpec(
    name="gpt", launcher="python", program=("train.py",), workdir="/", python="/python", gpus=GpuRequest(2),
    params={"batch_size": 64, "lr": 0.1, "layers": 12, "steps": 500},
)  # fmt: skip


def past_peak(run: str, batch: int, gib: float | None, *, ran_out: bool = False, **others: Any) -> PastPeak:
    params = {"batch_size": batch, "lr": 0.3, "layers": 12, "steps": 9, **others}
    peak_bytes = None if gib is None else round(gib * GIB)
    return PastPeak(run, 1, params, gpu_count=2, peak_bytes=peak_bytes, ran_out=ran_out)


def gpu_sample(index: int, celsius: float = 30.0, gib: float = 0.5, *reasons: str) -> GpuSample:
    return GpuSample(
        f"GPU-{index}",
        memory_used_bytes=round(gib * GIB),
        memory_total_bytes=80 * GIB,
        temperature_celsius=celsius,
        throttle_reasons=reasons,
    )


def desktop(*mebibytes: int) -> list[GpuProcess]:
    programs = ("/usr/lib/xorg/Xorg :0", "/usr/bin/gnome-shell", "firefox")
    return [
        GpuProcess(9 + place, size << 20, "G", "root", program)
        for place, (size, program) in enumerate(zip(mebibytes, programs, strict=False))
    ]


def chosen(
    gpus: GpuSituation, count: int, memory: int | None = None, pairs: Sequence[GpuPair] = ()
) -> list[int] | None:
    recommended = recommend(count, gpus, memory, pairs)
    return None if recommended is None else [gpu.index for gpu in recommended]


class TestGpus:
    spec = replace(SPEC, nproc=2, gpus=GpuRequest(2, (), 10 * GIB))

    def test_free_ones_in_order(self) -> None:
        result = check_gpus(self.spec, OF_80_GIB)
        assert (result.name, result.status) == ("gpus", "pass")
        assert mentions(result.detail, "0–1")
        chosen = replace(self.spec, gpus=GpuRequest(2, ("GPU-3", "GPU-1")))
        assert mentions(check_gpus(chosen, OF_80_GIB).detail, "GPUs 1, 3")
        assert [gpu.index for gpu in likely_gpus(chosen, OF_80_GIB)] == [1, 3]

    def test_busy_ones_are_passed_over_or_waited_for(self) -> None:
        used = GpuSample(uuid="GPU-2", memory_used_bytes=75 * GIB, memory_total_bytes=80 * GIB)
        busy = situation(sample={2: used}, has_processes={2: True}, holders={0: ("digits-3",)})
        assert mentions(check_gpus(self.spec, busy).detail, "GPUs 1, 3")
        result = check_gpus(replace(self.spec, gpus=GpuRequest(3, (), 10 * GIB)), busy)
        assert result.status == "warn"
        assert mentions(result.detail, "2 of 3", "GPU 0", "digits-3", "GPU 2", "5.0 of 10.0 GiB")

    def test_ones_that_a_queued_run_gets_first_are_not_free(self) -> None:
        big = json.dumps(replace(SPEC, gpus=GpuRequest(4)).to_json())
        waiting = WaitingRuns(
            (
                Run(
                    "big-1",
                    1,
                    "big",
                    profile="big",
                    state=RunState.QUEUED,
                    attempt=0,
                    params={},
                    spec_json=big,
                    created_at=0.0,
                ),
            )
        )
        busy = situation(holders={0: ("vit-1",)}, waiting=waiting)
        busy = replace(busy, promised=busy.promises())
        assert set(busy.promised.values()) == {"big-1"}
        assert not usable(busy)
        result = check_gpus(self.spec, busy)
        assert result.status == "warn"
        assert mentions(result.detail, "0 of 2", "1–3", "big-1")
        assert likely_gpus(self.spec, busy) == ()
        first = replace(self.spec, priority=1)
        assert [gpu.index for gpu in likely_gpus(first, busy)] == [1, 2]
        follower = busy.waiting._replace(not_yet={"big-1": "waits for vit-1 to succeed"})
        assert not replace(busy, waiting=follower).promises()
        paused = busy.waiting._replace(is_paused=True)
        assert not likely_gpus(first, replace(busy, waiting=paused))

    def test_unusable_ones_fail_with_their_reason(self) -> None:
        broken = situation(
            *GPUS[:3],
            replace(GPUS[3], mig_mode=True),
            sample={0: GpuSample(uuid="GPU-0", state="lost")},
            slow={1: GpuSlowSample(uuid="GPU-1", row_remap_failed=True)},
        )
        result = check_gpus(self.spec, broken)
        assert result.status == "fail"
        assert mentions(result.detail, "1 of 2", "GPU 0", "lost", "GPU 1", "remapped", "GPU 3", "MIG")
        missing = replace(self.spec, gpus=GpuRequest(1, ("GPU-9",)))
        assert check_gpus(missing, broken).detail == "GPU-9 does not exist"
        error = GpuSample(uuid="GPU-2", state="error", detail="timeout")
        single = replace(self.spec, gpus=GpuRequest(1, ("GPU-2",)))
        assert mentions(check_gpus(single, situation(sample={2: error})).detail, "error", "timeout")

    def test_too_small(self) -> None:
        result = check_gpus(replace(self.spec, gpus=GpuRequest(1, (), 100 * GIB)), OF_80_GIB)
        assert result.status == "fail"
        assert mentions(result.detail, "0–3", "80 GiB", "100 GiB")


@table(
    ("runs", "expected"),
    [
        # A recorded batch size: its largest peak. Between two recorded ones: on the line through them.
        (
            [past_peak("a", 64, 40), past_peak("b", 64, 42), past_peak("c", 32, 22)],
            Expectation(42 * GIB, 3, is_scaled=False),
        ),
        ([past_peak("a", 32, 22), past_peak("b", 128, 70)], Expectation(38 * GIB, 2, is_scaled=True)),
        # A single recorded batch size that is larger gives an upper bound.
        ([past_peak("a", 32, 22)], Expectation(44 * GIB, 1, is_scaled=True)),
        ([past_peak("a", 128, 30)], Expectation(30 * GIB, 1, is_scaled=True)),
        # Runs of another model do not count; runs with another learning rate or length do.
        ([past_peak("a", 64, 40, layers=24)], None),
        ([past_peak("a", 64, 40, steps=7, lr=9.0)], Expectation(40 * GIB, 1, is_scaled=False)),
    ],
)
def test_memory_expected_from_earlier_runs(runs: list[PastPeak], expected: Expectation | None) -> None:
    assert expect(runs, SPEC) == expected


@table(
    ("runs", "status", "phrases"),
    [
        ([past_peak("a", 64, 60)], "pass", ("60 GiB", "80 GiB", "1 earlier run")),
        ([past_peak("a", 32, 40)], "warn", ("another batch size",)),
        ([], "skip", ()),
        ([past_peak("a", 64, gib=None, ran_out=True), past_peak("b", 32, 20)], "warn", ("a ", "batch_size 64")),
        ([past_peak("a", 128, gib=None, ran_out=True), past_peak("b", 64, 20)], "pass", ()),
        ([past_peak("a", 64, 70, ran_out=True, layers=24)], "skip", ()),
    ],
)
def test_whether_memory_suffices(runs: list[PastPeak], status: str, phrases: tuple[str, ...]) -> None:
    check = check_memory(runs, SPEC, OF_80_GIB)
    assert check.status == status
    assert mentions(check.detail, *phrases)
    assert mentions(check.remedy, "lower batch_size") is (status == "warn")


def test_memory_is_not_judged_without_gpus_or_their_figures() -> None:
    for spec in (SPEC, replace(SPEC, gpus=GpuRequest(0))):
        assert check_memory([past_peak("a", 64, 60)], spec, situation=None).status == "skip"


def test_free_ones_in_the_order_of_their_indices() -> None:
    busy = situation(holders={2: ("vit-1",)}, sample={0: gpu_sample(0, gib=20)}, has_processes={0: True})
    for (count, memory), expected in {
        (2, None): [0, 1], (3, None): [0, 1, 3], (4, None): None, (0, None): None, (3, 70 * GIB): None,
        (2, 70 * GIB): [1, 3],
    }.items():  # fmt: skip
        assert chosen(busy, count, memory) == expected, (count, memory)


@table(
    ("changes", "order"),
    [
        # Empty GPUs come first, then healthy ones, then cool ones; broken or occupied ones are never chosen.
        ({"sample": {0: gpu_sample(0, 71), 1: gpu_sample(1, 55), 2: gpu_sample(2, 49)}}, [2, 3, 1, 0]),
        ({"sample": {0: gpu_sample(0, 88)}, "slow": {1: GpuSlowSample("GPU-1", row_remap_pending=True)}}, [2, 3, 1, 0]),
        (
            {"sample": {0: gpu_sample(0, 30, 0.5, "hardware thermal"), 1: gpu_sample(1, 30, 0.5, "power cap")}},
            [1, 2, 3, 0],
        ),
        ({"alert": {1: "GPU hot"}, "processes": {0: desktop(780, 350, 690)}}, [2, 3, 1, 0]),
        ({"sample": {0: GpuSample("GPU-0", state="lost")}, "quarantine": {2: "XID 79"}}, [1, 3]),
        ({"processes": {0: desktop(2049), 1: [GpuProcess(5, 1 << 20, "C", "bob")]}}, [2, 3]),
        ({"is_excluded": {1: True}, "sample": {0: gpu_sample(0, 71)}}, [2, 3, 0]),
        ({"locked_by": {0: "vit-1 of alice (pid 5)"}, "sample": {3: gpu_sample(3, gib=9)}}, [1, 2]),
    ],
)  # fmt: skip
def test_what_is_recommended_is_what_is_started(changes: dict[str, Any], order: list[int]) -> None:
    gpus = situation(**changes)
    assert [gpu.facts.index for gpu in usable(gpus)] == order
    for count in range(1, 5):
        expected = sorted(order[:count]) if count <= len(order) else []
        assert [gpu.index for gpu in likely_gpus(replace(SPEC, gpus=GpuRequest(count)), gpus)] == expected
        assert (chosen(gpus, count) or []) == expected


def test_who_is_on_an_occupied_gpu_is_said_and_a_desktop_can_be_accepted() -> None:
    gpus = situation(
        processes={
            0: desktop(1500, 700, 90),
            1: [GpuProcess(5, 1 << 20, "C", "bob", "/env/bin/python -u train.py --lr 1"), *desktop(90)],
            2: [GpuProcess(6)],
        },
        locked_by={3: "vit-1 of alice (pid 5)"},
    )
    reasons = [gpus.busy_reason(gpu, None) for gpu in gpus.conditions]
    holders = (("Xorg", "root", "2 more"), ("train.py", "bob"), ("process 6",), ("vit-1 of alice (pid 5)",))
    assert all(mentions(reason, *holder) for reason, holder in zip(reasons, holders, strict=True))
    waits = check_gpus(replace(SPEC, gpus=GpuRequest(1)), gpus)
    assert mentions(waits.detail, "0 of ", "GPU 0", "Xorg", "root", "GPU 3", "vit-1 of alice")
    accepting = replace(SPEC, gpus=GpuRequest(1, beside_desktop=True))
    result = check_gpus(accepting, gpus)
    assert result.status == "pass"
    assert mentions(result.detail, "GPU 0")


def test_near_ones_are_preferred_but_not_to_healthy_ones() -> None:
    pairs = [
        GpuPair(low, high, p2p=True, nvlink={low, high} == {1, 3}, path="two CPUs")
        for low in range(4)
        for high in range(low)
    ]
    assert chosen(OF_80_GIB, 2, memory=None, pairs=pairs) == [1, 3]
    assert chosen(OF_80_GIB, 1, memory=None, pairs=pairs) == [0]
    remap = {index: GpuSlowSample(f"GPU-{index}", row_remap_pending=True) for index in range(4)}
    worried = situation(slow={3: remap[3]})
    assert chosen(worried, 2, memory=None, pairs=pairs) == [0, 1]
    assert chosen(worried, 4, memory=None, pairs=pairs) == [
        0,
        1,
        2,
        3,
    ]
    only_one_calm = situation(slow={index: remap[index] for index in (0, 2, 3)})
    assert chosen(only_one_calm, 1, memory=None, pairs=pairs) == [1]
    assert chosen(only_one_calm, 2, memory=None, pairs=pairs) == [1, 3], "the nearest of the doubtful"
