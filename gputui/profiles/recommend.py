"""Which GPUs a run should take; pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.gpu.model import GpuFacts
from gputui.gpu.topology import GpuPair, closest_gpus
from gputui.profiles.gpu_checks import GpuSituation


def usable(situation: GpuSituation, memory_bytes: int | None = None) -> list[GpuFacts]:
    """The GPUs that are free, healthy and have that much memory left, best first: none to worry about before others,
    then those with more free memory, then by index."""
    free = [
        gpu
        for gpu in situation.facts
        if situation.obstacle(gpu, memory_bytes) is None and situation.hindrance(gpu, memory_bytes) is None
    ]
    return sorted(free, key=lambda gpu: (situation.worry(gpu) is not None, -_free_gibibytes(situation, gpu), gpu.index))


def recommend(
    count: int, situation: GpuSituation, memory_bytes: int | None = None, pairs: Sequence[GpuPair] = ()
) -> tuple[GpuFacts, ...] | None:
    """The best ``count`` GPUs in the order of their indices; None where fewer can be had now.

    Those of one model are kept together, for ranks wait for the slowest GPU; then those that reach each other fastest,
    as far as ``pairs`` tell. A GPU with something to worry about is taken only where there are not enough others.
    """
    best = usable(situation, memory_bytes)
    if count < 1 or len(best) < count:
        return None
    of_model: dict[str, list[GpuFacts]] = {}
    for gpu in best:
        of_model.setdefault(gpu.name, []).append(gpu)
    together = next((gpus for gpus in of_model.values() if len(gpus) >= count), best)
    calm = [gpu for gpu in together if situation.worry(gpu) is None]
    # Where there are not enough to be calm about, all of these, and around them as many others as are missing.
    offered, fixed = (calm, []) if len(calm) >= count else (together, calm)
    chosen = set(closest_gpus([gpu.index for gpu in offered], count, pairs, [gpu.index for gpu in fixed]))
    return tuple(sorted((gpu for gpu in offered if gpu.index in chosen), key=lambda gpu: gpu.index))


def _free_gibibytes(situation: GpuSituation, gpu: GpuFacts) -> int:
    """Free memory as it was last read, in whole GiB: a few MiB decide nothing, and equal GPUs are taken in the order of
    their indices. Memory in use that is not known counts as none."""
    sample = situation.samples.get(gpu.uuid)
    total_bytes = (sample.memory_total_bytes if sample is not None else None) or gpu.memory_total_bytes or 0
    used_bytes = (sample.memory_used_bytes if sample is not None else None) or 0
    return max(0, total_bytes - used_bytes) >> 30
