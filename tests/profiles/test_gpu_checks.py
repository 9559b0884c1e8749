"""GPUs that a run asks for: whether they are free and large enough, and which are recommended."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.gpu_checks import Expectation, GpuSituation, check_gpus, check_memory, expect, likely_gpus
from gputui.profiles.recommend import recommend, usable
from gputui.runs.checks import CheckResult
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.waiting_runs import WaitingRuns
from gputui.store.gpu_use import PastPeak
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.store.series import GpuSample, GpuSlowSample
from tests.tables import table
from tests.texts import mentions

GIB = 2**30
GPUS = [GpuFacts(uuid=f"GPU-{index}", index=index, name="H200", memory_total_bytes=80 * GIB) for index in range(4)]
OF_80_GIB = GpuSituation(GPUS)
SPEC = RunSpec(
    name="gpt", launcher="python", program=("train.py",), workdir="/", python="/python", gpus=GpuRequest(2),
    params={"batch_size": 64, "lr": 0.1, "layers": 12, "steps": 500},
)  # fmt: skip


class TestGpus:
    spec = replace(SPEC, nproc=2, gpus=GpuRequest(2, (), 10 * GIB))

    def test_free_ones_in_order(self) -> None:
        assert check_gpus(self.spec, GpuSituation(GPUS)) == CheckResult("gpus", "pass", "starts now on GPUs 0–1")
        named = replace(self.spec, gpus=GpuRequest(2, ("GPU-3", "GPU-1")))
        assert mentions(check_gpus(named, GpuSituation(GPUS)).detail, "GPUs 1, 3")
        assert [gpu.index for gpu in likely_gpus(named, GpuSituation(GPUS))] == [1, 3]

    def test_busy_ones_are_passed_over_or_waited_for(self) -> None:
        used = GpuSample(uuid="GPU-2", memory_used_bytes=75 * GIB, memory_total_bytes=80 * GIB)
        situation = GpuSituation(GPUS, samples={"GPU-2": used}, in_use={"GPU-0": "is used by digits-3"})
        assert mentions(check_gpus(self.spec, situation).detail, "GPUs 1, 3")
        result = check_gpus(replace(self.spec, gpus=GpuRequest(3, (), 10 * GIB)), situation)
        assert result.status == "warn"
        assert mentions(result.detail, "3 GPUs", "2 free", "GPU 0", "digits-3", "GPU 2", "5.0 of 10.0 GiB")

    def test_ones_that_a_queued_run_gets_first_are_not_free(self) -> None:
        big = json.dumps(replace(SPEC, gpus=GpuRequest(4)).to_json())
        waiting = WaitingRuns((Run("big-1", 1, "big", "big", RunState.QUEUED, 0, {}, big, 0.0),))
        situation = GpuSituation(GPUS, holders={"GPU-0": ("vit-1",)}, waiting=waiting)
        situation = replace(situation, promised=situation.promises())
        assert set(situation.promised.values()) == {"big-1"} and not usable(situation)[:-1]
        result = check_gpus(self.spec, situation)
        assert result.status == "warn" and mentions(result.detail, "0 free", "GPUs 1–3", "big-1")
        assert likely_gpus(self.spec, situation) == ()
        first = replace(self.spec, priority=1)
        assert [gpu.index for gpu in likely_gpus(first, situation)] == [1, 2]
        follower = situation.waiting._replace(predecessors={"big-1": "waits for vit-1 to succeed"})
        assert not replace(situation, waiting=follower).promises()
        paused = situation.waiting._replace(is_paused=True)
        assert not likely_gpus(first, replace(situation, waiting=paused))

    def test_unusable_ones_fail_with_their_reason(self) -> None:
        situation = GpuSituation(
            [*GPUS[:3], replace(GPUS[3], mig_mode=True)],
            samples={"GPU-0": GpuSample(uuid="GPU-0", state="lost")},
            slow={"GPU-1": GpuSlowSample(uuid="GPU-1", row_remap_failed=True)},
        )
        result = check_gpus(self.spec, situation)
        assert result.status == "fail"
        assert mentions(result.detail, "1 of 2", "GPU 0", "lost", "GPU 1", "remapped", "GPU 3", "MIG")
        missing = replace(self.spec, gpus=GpuRequest(1, ("GPU-9",)))
        assert check_gpus(missing, situation).detail == "GPU-9 does not exist"
        error = GpuSample(uuid="GPU-2", state="error", detail="timeout")
        one = replace(self.spec, gpus=GpuRequest(1, ("GPU-2",)))
        assert mentions(check_gpus(one, GpuSituation(GPUS, {"GPU-2": error})).detail, "error", "timeout")

    def test_too_small(self) -> None:
        result = check_gpus(replace(self.spec, gpus=GpuRequest(1, (), 100 * GIB)), GpuSituation(GPUS))
        assert result.status == "fail"
        assert mentions(result.detail, "GPUs 0–3 have 80 GiB", "100 GiB")


def past(run: str, batch: int, gib: float | None, *, ran_out: bool = False, **others: Any) -> PastPeak:
    params = {"batch_size": batch, "lr": 0.3, "layers": 12, "steps": 9, **others}
    return PastPeak(run, 1, params, 2, None if gib is None else round(gib * GIB), ran_out)


@table(
    ("runs", "expected"),
    [
        # The same batch size: the largest peak seen. Between two others: on their line.
        ([past("a", 64, 40), past("b", 64, 42), past("c", 32, 22)], Expectation(42 * GIB, 3, is_scaled=False)),
        ([past("a", 32, 22), past("b", 128, 70)], Expectation(38 * GIB, 2, is_scaled=True)),
        # One other batch size is an upper bound.
        ([past("a", 32, 22)], Expectation(44 * GIB, 1, is_scaled=True)),
        ([past("a", 128, 30)], Expectation(30 * GIB, 1, is_scaled=True)),
        # Another model tells nothing, another rate or length does.
        ([past("a", 64, 40, layers=24)], None),
        ([past("a", 64, 40, steps=7, lr=9.0)], Expectation(40 * GIB, 1, is_scaled=False)),
    ],
)
def test_memory_expected_from_earlier_runs(runs: list[PastPeak], expected: Expectation | None) -> None:
    assert expect(runs, SPEC) == expected


@table(
    ("runs", "status", "words"),
    [
        ([past("a", 64, 60)], "pass", ("60 GiB", "80 GiB", "1 earlier run")),
        ([past("a", 32, 40)], "warn", ("another batch size",)),
        ([], "skip", ()),
        ([past("a", 64, None, ran_out=True), past("b", 32, 20)], "warn", ("a ", "batch_size 64")),
        ([past("a", 128, None, ran_out=True), past("b", 64, 20)], "pass", ()),
        ([past("a", 64, 70, ran_out=True, layers=24)], "skip", ()),
    ],
)
def test_whether_memory_suffices(runs: list[PastPeak], status: str, words: tuple[str, ...]) -> None:
    found = check_memory(runs, SPEC, OF_80_GIB)
    assert found.status == status and mentions(found.detail, *words)
    assert mentions(found.remedy, "lower batch_size") is (status == "warn")


def test_memory_is_not_judged_without_gpus_or_their_figures() -> None:
    for spec in (SPEC, replace(SPEC, gpus=GpuRequest(0))):
        assert check_memory([past("a", 64, 60)], spec, None).status == "skip"


def used(index: int, gib: float) -> dict[str, GpuSample]:
    return {f"GPU-{index}": GpuSample(f"GPU-{index}", memory_used_bytes=round(gib * GIB), memory_total_bytes=80 * GIB)}


def test_free_ones_with_most_memory_in_the_order_of_their_indices() -> None:
    situation = GpuSituation(GPUS, {**used(0, 20), **used(1, 0.5)}, in_use={"GPU-2": "is used by vit-1"})
    for (count, memory), expected in {
        (2, None): [1, 3], (3, None): [0, 1, 3], (4, None): None, (0, None): None, (3, 70 * GIB): None,
    }.items():  # fmt: skip
        found = recommend(count, situation, memory)
        assert (found and [gpu.index for gpu in found]) == expected, (count, memory)


def test_what_is_broken_is_never_and_what_is_doubtful_last() -> None:
    situation = GpuSituation(
        GPUS,
        {"GPU-0": GpuSample("GPU-0", state="lost")},
        {"GPU-1": GpuSlowSample("GPU-1", row_remap_pending=True)},
        quarantined={"GPU-2": "XID 79"},
    )
    assert [gpu.index for gpu in usable(situation)] == [3, 1]
    hot = GpuSituation(GPUS, used(0, 20), alerts={"GPU-1": "GPU hot", "GPU-2": "clocks throttled"})
    assert [gpu.index for gpu in usable(hot)] == [3, 0, 1, 2]


def test_near_ones_are_preferred_but_not_to_healthy_ones() -> None:
    pairs = [GpuPair(one, other, True, {one, other} == {1, 3}, "two CPUs") for one in range(4) for other in range(one)]
    situation = GpuSituation(GPUS, used(1, 20))

    def chosen(situation: GpuSituation, count: int) -> list[int]:
        return [gpu.index for gpu in recommend(count, situation, 10 * GIB, pairs) or ()]

    assert chosen(situation, 2) == [1, 3], "NVLink counts for more than memory that nobody asked for"
    assert chosen(situation, 1) == [0]
    worried = GpuSituation(GPUS, slow={"GPU-3": GpuSlowSample("GPU-3", row_remap_pending=True)})
    assert chosen(worried, 2) == [0, 1] and chosen(worried, 4) == [0, 1, 2, 3]
    only_one_calm = GpuSituation(GPUS, slow={gpu.uuid: GpuSlowSample(gpu.uuid, row_remap_pending=True)
                                             for gpu in GPUS if gpu.index != 1})  # fmt: skip
    assert chosen(only_one_calm, 1) == [1] and chosen(only_one_calm, 2) == [1, 3], "the nearest of the doubtful"
