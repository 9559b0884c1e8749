"""The best GPUs for a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair, closest_gpus
from gputui.profiles.gpu_checks import GpuSituation
from gputui.runs.gpu_conditions import GpuCondition


def usable(situation: GpuSituation, memory_bytes: int | None = None) -> list[GpuCondition]:
    """The free GPUs with enough memory, in the order in which the scheduler takes them."""
    free = [gpu for gpu in situation.conditions if situation.is_free(gpu, memory_bytes)]
    return sorted(free, key=lambda gpu: (gpu.preference, gpu.facts.index))


def recommend(
    count: int, situation: GpuSituation, memory_bytes: int | None = None, pairs: Sequence[GpuPair] = ()
) -> tuple[GpuFacts, ...] | None:
    """The best GPUs in the order of their indices; None if fewer are free.

    GPUs of one model stay together, because ranks wait for the slowest GPU. Among these, the best connected ones are
    chosen. A GPU with a desktop or a warning is taken only if there are too few others.

    Args:
        memory_bytes: What must be free on each, None for any.
        pairs: How they are connected, empty if unknown.
    """
    best = usable(situation, memory_bytes)
    if count < 1 or len(best) < count:
        return None
    of_model: dict[str, list[GpuCondition]] = {}
    for gpu in best:
        of_model.setdefault(gpu.facts.name, []).append(gpu)
    together = next((gpus for gpus in of_model.values() if len(gpus) >= count), best)
    well = [gpu for gpu in together if not gpu.processes and gpu.warning is None]
    # Too few that are empty and well: take all of these, and the others that are closest to them.
    offered, fixed = (well, []) if len(well) >= count else (together, well)
    chosen = set(closest_gpus([gpu.facts.index for gpu in offered], count, pairs, [gpu.facts.index for gpu in fixed]))
    return tuple(sorted((gpu.facts for gpu in offered if gpu.facts.index in chosen), key=lambda facts: facts.index))
