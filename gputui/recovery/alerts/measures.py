"""The measures of rules about a GPU or the host. Pure. A threshold is in the unit at the end of its name."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.machine.throttle import TROUBLE
from gputui.machine.xid import XidClass, xid_class, xid_text
from gputui.recovery.alerts.moments import IDLE, UNKNOWN, GpuMoment, HostMoment, RuleReading

Limits = Mapping[str, float]

# No GPU slows down below this; a lower limit means that the driver does not know it.
MIN_SLOWDOWN_CELSIUS = 60.0

_OF_THE_PROGRAM = frozenset({XidClass.APPLICATION, XidClass.NOTICE})
_OF_THE_HARDWARE = frozenset({XidClass.CONTAINED, XidClass.MEMORY, XidClass.LINK, XidClass.LOST})


def lost(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """1 while the driver does not answer for the GPU."""
    return RuleReading(float(gpu.state == "lost"), 0.0) if gpu.is_known else UNKNOWN


def xid_of_program(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The number of XIDs that are usually an error of the program, or have an unknown meaning. XIDs that follow from
    another error do not count."""
    return _xids(gpu, _OF_THE_PROGRAM)


def xid_of_hardware(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The number of XIDs that concern the GPU, its memory or its links."""
    return _xids(gpu, _OF_THE_HARDWARE)


def ecc(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """New uncorrected memory errors."""
    new = gpu.grown.get("ecc_uncorrected")
    return RuleReading(None if new is None else float(new), 0.0)


def row_remap(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """1 while a memory row waits to be remapped by a reset, 2 if remapping failed."""
    if gpu.slow is None or (gpu.slow.row_remap_pending is None and gpu.slow.row_remap_failed is None):
        return UNKNOWN
    if gpu.slow.row_remap_failed:
        return RuleReading(2.0, 0.0, "remapping a bad memory row failed")
    return RuleReading(float(bool(gpu.slow.row_remap_pending)), 0.0, "a bad memory row waits to be remapped")


def gpu_memory(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The share of the GPU's memory in use."""
    return _share(gpu.memory_used_bytes, gpu.memory_total_bytes, limits["above_percent"])


def heat(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The temperature. Its limit is the fixed one or the one below the driver's slowdown limit, whichever is lower."""
    limit, detail = limits["above_celsius"], ""
    if gpu.slowdown_celsius is not None and gpu.slowdown_celsius >= MIN_SLOWDOWN_CELSIUS:
        near = gpu.slowdown_celsius - limits["margin_celsius"]
        if near < limit:
            limit, detail = near, f"; throttles at {gpu.slowdown_celsius:.0f} °C"
    return RuleReading(gpu.temperature_celsius, limit, detail)


def throttled(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The share of the last minute in which one of the `TROUBLE` reasons held the clocks back."""
    words = ", ".join(reason for reason in gpu.throttle_reasons or () if reason in TROUBLE)
    return RuleReading(gpu.throttled_percent, limits["above_percent"], f": {words}" if words else "")


def underused(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The mean utilisation of the last minute while a run trains on the GPU."""
    if gpu.training_run is None:
        return IDLE
    return RuleReading(gpu.busy_percent, limits["below_percent"], gpu.training_run)


def parked(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """Memory held, in GiB, while nothing is computed."""
    if gpu.utilization_percent is None or gpu.memory_used_bytes is None:
        return UNKNOWN
    if gpu.utilization_percent > 0:
        return IDLE
    return RuleReading(gpu.memory_used_bytes / 2**30, limits["above_gib"], f" by {gpu.holder}" if gpu.holder else "")


def power_trend(gpu: GpuMoment, limits: Limits) -> RuleReading:
    """The difference in percent between the power of the last minutes and of the hour before, within one attempt."""
    if gpu.training_run is None:
        return IDLE
    if gpu.power_watts is None or not gpu.power_before_watts:
        return UNKNOWN
    change = 100.0 * (gpu.power_watts / gpu.power_before_watts - 1.0)
    word = "fell" if change < 0 else "rose"
    detail = f"{word} from {gpu.power_before_watts:.0f} W to {gpu.power_watts:.0f} W under {gpu.training_run}"
    return RuleReading(abs(change), limits["change_percent"], detail)


def host_memory(host: HostMoment, limits: Limits) -> RuleReading:
    """The share of the host's memory in use, without the page cache."""
    return _share(host.memory_used_bytes, host.memory_total_bytes, limits["above_percent"])


def host_growth(host: HostMoment, limits: Limits) -> RuleReading:
    """The growth of the host's memory in GB per hour."""
    growth = host.memory_growth_bytes_per_hour
    if growth is None:
        return UNKNOWN
    detail = ""
    if growth > 0 and host.memory_used_bytes is not None and host.memory_total_bytes is not None:
        detail = f"; full in {(host.memory_total_bytes - host.memory_used_bytes) / growth:.1f} h"
    return RuleReading(growth / 1e9, limits["above_gb_per_hour"], detail)


def disk(host: HostMoment, limits: Limits) -> RuleReading:
    """The used share of the file system with the state."""
    return _share(host.disk_used_bytes, host.disk_total_bytes, limits["above_percent"])


def shared_memory(host: HostMoment, limits: Limits) -> RuleReading:
    """The used share of /dev/shm."""
    return _share(host.shm_used_bytes, host.shm_total_bytes, limits["above_percent"])


def _xids(gpu: GpuMoment, classes: frozenset[XidClass]) -> RuleReading:
    codes = [code for code in gpu.xids if xid_class(code) in classes]
    if not codes and not gpu.is_known:
        return UNKNOWN
    return RuleReading(float(len(codes)), 0.0, xid_text(codes[-1]) if codes else "")


def _share(used: int | None, total: int | None, limit: float) -> RuleReading:
    return UNKNOWN if used is None or not total else RuleReading(100.0 * used / total, limit)
