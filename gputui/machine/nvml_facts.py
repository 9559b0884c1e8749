"""The facts of a GPU, which do not change while its driver is loaded."""

from __future__ import annotations

from typing import Any, NamedTuple

import psutil

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.nvml_calls import Calls

# nvml.h: nvmlTemperatureThresholds_t, NVML_FI_DEV_POWER_INSTANT.
_THRESHOLD_SHUTDOWN = 0
_THRESHOLD_SLOWDOWN = 1
FIELD_POWER_INSTANT = 186


class UnifiedMemory(NamedTuple):
    """The host's memory, which an integrated GPU has in place of its own."""

    total: int
    used: int


def read_facts(calls: Calls, index: int, uuid: str, handle: Any) -> GpuFacts:
    """The facts of the GPU behind ``handle``. Raises GpuGoneError, DriverGoneError."""
    pci = calls.ask(uuid, "nvmlDeviceGetPciInfo", handle)
    limits = calls.ask(uuid, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
    capability = calls.ask(uuid, "nvmlDeviceGetCudaComputeCapability", handle)
    persistence = calls.number(uuid, "nvmlDeviceGetPersistenceMode", handle)
    mig = calls.ask(uuid, "nvmlDeviceGetMigMode", handle)
    memory = read_memory(calls, uuid, handle)
    instant = calls.fields(uuid, handle, [(FIELD_POWER_INSTANT, 0)])
    return GpuFacts(
        uuid=uuid,
        index=index,
        name=calls.text(uuid, "nvmlDeviceGetName", handle) or "NVIDIA GPU",
        pci_bus_id=str(pci.busId) if pci is not None else None,
        memory_total_bytes=memory.total if memory is not None else None,
        power_limit_default_watts=watts(calls.number(uuid, "nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        power_limit_max_watts=watts(limits[1]) if limits is not None else None,
        temperature_slowdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SLOWDOWN),
        temperature_shutdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SHUTDOWN),
        pcie_generation_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability is not None else None,
        persistence_mode=None if persistence is None else bool(persistence),
        mig_mode=None if mig is None else bool(mig[0]),
        power_reading="instant" if instant else "driver",
        memory_is_unified=isinstance(memory, UnifiedMemory),
    )


def read_memory(calls: Calls, uuid: str, handle: Any) -> Any:
    """Total, used and, with the call's second version, reserved bytes; None if unknown. Only the second version's
    ``used`` excludes reserved memory. A GPU that has neither memory nor a window into it (BAR1) uses the host's. Raises
    GpuGoneError, DriverGoneError."""
    second = calls.nvml.nvmlMemory_v2
    if calls.answers(uuid, "nvmlDeviceGetMemoryInfo", second):
        memory = calls.ask(uuid, "nvmlDeviceGetMemoryInfo", handle, second)
        if memory is not None or calls.answers(uuid, "nvmlDeviceGetMemoryInfo", second):
            return memory
    memory = calls.ask(uuid, "nvmlDeviceGetMemoryInfo", handle)
    if memory is None and not calls.answers(uuid, "nvmlDeviceGetMemoryInfo"):
        calls.ask(uuid, "nvmlDeviceGetBAR1MemoryInfo", handle)
        if not calls.answers(uuid, "nvmlDeviceGetBAR1MemoryInfo"):
            host = psutil.virtual_memory()
            return UnifiedMemory(host.total, host.total - host.available)
    return memory


def watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000.0


def _threshold(calls: Calls, uuid: str, handle: Any, which: int) -> float | None:
    value = calls.number(uuid, "nvmlDeviceGetTemperatureThreshold", handle, which)
    return None if not value else float(value)
