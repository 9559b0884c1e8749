"""The best GPUs for a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair, closest_gpus
from gputui.profiles.gpu_checks import GpuSituation


def usable(situation: GpuSituation, memory_bytes: int | None = None) -> list[GpuFacts]:
    """The free GPUs with enough memory: first without a warning, then by free memory, by index."""
    free = [gpu for gpu in situation.facts if situation.is_free(gpu, memory_bytes)]
    return sorted(
        free, key=lambda gpu: (situation.warning(gpu) is not None, -_free_gibibytes(situation, gpu), gpu.index)
    )


def recommend(
    count: int, situation: GpuSituation, memory_bytes: int | None = None, pairs: Sequence[GpuPair] = ()
) -> tuple[GpuFacts, ...] | None:
    """The best ``count`` GPUs in the order of their indices; None if fewer are free.

    GPUs of one model stay together, because ranks wait for the slowest GPU. Among these, the best connected ones are
    chosen by ``pairs``. A GPU with a warning is taken only if there are too few others.
    """
    best = usable(situation, memory_bytes)
    if count < 1 or len(best) < count:
        return None
    of_model: dict[str, list[GpuFacts]] = {}
    for gpu in best:
        of_model.setdefault(gpu.name, []).append(gpu)
    together = next((gpus for gpus in of_model.values() if len(gpus) >= count), best)
    healthy = [gpu for gpu in together if situation.warning(gpu) is None]
    # Too few without a warning: take all of these, and the others that are closest to them.
    offered, fixed = (healthy, []) if len(healthy) >= count else (together, healthy)
    chosen = set(closest_gpus([gpu.index for gpu in offered], count, pairs, [gpu.index for gpu in fixed]))
    return tuple(sorted((gpu for gpu in offered if gpu.index in chosen), key=lambda gpu: gpu.index))


def _free_gibibytes(situation: GpuSituation, gpu: GpuFacts) -> int:
    """Free memory in whole GiB, so that a few MiB do not decide. Unknown use counts as none."""
    sample = situation.samples.get(gpu.uuid)
    total_bytes = (sample.memory_total_bytes if sample is not None else None) or gpu.memory_total_bytes or 0
    used_bytes = (sample.memory_used_bytes if sample is not None else None) or 0
    return max(0, total_bytes - used_bytes) >> 30
