"""Totals over the GPUs of one tick. A value that a GPU does not give is left out of its total; a total of nothing is
None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputui.gpu.model import GpuSample


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """``gpu_count`` counts all GPUs, ``answering_count`` those whose state is ok. Utilisation is the mean over the
    GPUs that give it."""

    gpu_count: int
    answering_count: int
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    hottest_index: int | None = None
    hottest_uuid: str | None = None
    hottest_celsius: float | None = None


def totals(samples: Iterable[GpuSample], indices: Mapping[str, int]) -> GpuTotals:
    """The totals; ``indices`` maps a UUID to the GPU's index. Of equally hot GPUs the one with the lowest index is
    the hottest."""
    gpus = list(samples)
    used = [gpu.memory_used_bytes for gpu in gpus if gpu.memory_used_bytes is not None]
    total = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None]
    utilization = [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]
    power = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    limit = [gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts is not None]
    warm = [
        (-gpu.temperature_celsius, indices.get(gpu.uuid, len(indices)), gpu.uuid)
        for gpu in gpus
        if gpu.temperature_celsius is not None
    ]
    hottest = min(warm, default=None)
    return GpuTotals(
        gpu_count=len(gpus),
        answering_count=sum(gpu.state == "ok" for gpu in gpus),
        memory_used_bytes=sum(used) if used else None,
        memory_total_bytes=sum(total) if total else None,
        utilization_percent=sum(utilization) / len(utilization) if utilization else None,
        power_watts=sum(power) if power else None,
        power_limit_watts=sum(limit) if limit else None,
        hottest_index=indices.get(hottest[2]) if hottest else None,
        hottest_uuid=hottest[2] if hottest else None,
        hottest_celsius=-hottest[0] if hottest else None,
    )
