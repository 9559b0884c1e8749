"""Which GPUs are recommended."""

from __future__ import annotations

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.gpu_checks import GpuSituation, likely_gpus
from gputui.profiles.recommend import recommend, usable
from gputui.runs.spec import GpuRequest
from gputui.store.series import GpuSample, GpuSlowSample

GIB = 2**30
GPUS = [GpuFacts(uuid=f"GPU-{index}", index=index, name="H200", memory_total_bytes=80 * GIB) for index in range(4)]


def indices(situation: GpuSituation, count: int, memory_bytes: int | None = None) -> list[int] | None:
    found = recommend(count, situation, memory_bytes)
    return None if found is None else [gpu.index for gpu in found]


def used(index: int, gib: float) -> dict[str, GpuSample]:
    return {f"GPU-{index}": GpuSample(f"GPU-{index}", memory_used_bytes=round(gib * GIB), memory_total_bytes=80 * GIB)}


def test_free_ones_with_most_memory_in_the_order_of_their_indices() -> None:
    situation = GpuSituation(GPUS, {**used(0, 20), **used(1, 0.5)}, in_use={"GPU-2": "is used by vit-1"})
    assert indices(situation, 2) == [1, 3]
    assert indices(situation, 3) == [0, 1, 3]
    assert indices(situation, 4) is None and indices(situation, 0) is None
    assert indices(situation, 3, 70 * GIB) is None


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
    assert [gpu.index for gpu in likely_gpus(GpuRequest(3), hot)] == [0, 3, 1]


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
