"""Totals over the GPUs of one moment. Unknown values are left out; a total of nothing is None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import sum_of_known
from gputui.store.series import GpuSample

# States in which the values of a GPU are outdated.
_GONE = ("lost", "error")


class GpuTotals(Struct, frozen=True):
    """Sums over the GPUs that are not lost, None where none has a value.

    Attributes:
        gpu_count: All GPUs, lost ones too.
        answering_count: GPUs whose state is ok.
        lost_count: GPUs whose state is lost.
        utilization_percent: A mean.
        hottest_index: The index of the hottest GPU, the lowest of several.
        hottest_uuid: The UUID of the GPU with ``hottest_index``.
        hottest_celsius: The temperature of the GPU with ``hottest_index``.
    """

    gpu_count: int
    answering_count: int
    lost_count: int = 0
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    hottest_index: int | None = None
    hottest_uuid: str | None = None
    hottest_celsius: float | None = None


def totals(readings: Iterable[GpuSample], indices: Mapping[str, int]) -> GpuTotals:
    """The totals. ``indices`` maps a UUID to the index of the GPU. Of equally hot GPUs the lowest
    index wins. Lost and unreadable GPUs are only counted."""
    listed = list(readings)
    gpus = [gpu for gpu in listed if gpu.state not in _GONE]
    utilization = None
    if shares := [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]:
        utilization = sum(shares) / len(shares)
    warm = [
        (-gpu.temperature_celsius, indices.get(gpu.uuid, len(indices)), gpu.uuid)
        for gpu in gpus
        if gpu.temperature_celsius is not None
    ]
    result = GpuTotals(
        gpu_count=len(listed),
        answering_count=sum(gpu.state == "ok" for gpu in gpus),
        lost_count=sum(gpu.state == "lost" for gpu in listed),
        memory_used_bytes=sum_of_known(gpu.memory_used_bytes for gpu in gpus),
        memory_reserved_bytes=sum_of_known(gpu.memory_reserved_bytes for gpu in gpus),
        memory_total_bytes=sum_of_known(gpu.memory_total_bytes for gpu in gpus),
        utilization_percent=utilization,
        power_watts=sum_of_known(gpu.power_watts for gpu in gpus),
        power_limit_watts=sum_of_known(gpu.power_limit_watts for gpu in gpus),
    )
    if not warm:
        return result
    celsius, _, uuid = min(warm)
    return replace(result, hottest_index=indices.get(uuid), hottest_uuid=uuid, hottest_celsius=-celsius)
