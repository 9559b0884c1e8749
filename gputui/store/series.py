"""Samples of GPUs and the host: every value is declared here, once.

Out: the records that samplers fill, that cross the pipe and become rows, and their tables. A field that is added to a
record crosses the pipe, gets its column in every home when the agent starts next, is stored, and if it is one of
`GpuSlowSample` it is in the JSON of `gputui gpus`. None is what the driver did not give; it is never replaced by 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

HOST_ID = 0
"""Stands for the host where others give a ``gpu_id``."""

GpuState = Literal["ok", "lost", "error"]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The fast tier, read every tick. ``memory_clock_mhz``, ``performance_state`` and ``power_limit_watts`` change
    rarely and may be some seconds older. ``throttle_reasons`` is empty when nothing holds the clocks
    back and None when the driver does not say."""

    uuid: str
    state: GpuState = "ok"
    detail: str | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    performance_state: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuSlowSample:
    """The slow tier, read every few seconds: what is expensive to ask or changes rarely."""

    uuid: str
    fan_percent: float | None = None
    memory_temperature_celsius: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_received_bytes_per_second: float | None = None
    pcie_sent_bytes_per_second: float | None = None
    nvlink_received_bytes_per_second: float | None = None
    nvlink_sent_bytes_per_second: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    energy_joules: float | None = None
    pcie_replays: int | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One tick of the host. Rates are means since the previous tick and None on the first one."""

    at: float
    cpu_percent: float | None = None
    cpu_count: int | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    disk_used_bytes: int | None = None
    disk_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    network_received_bytes_per_second: float | None = None
    network_sent_bytes_per_second: float | None = None
    kind: Literal["host"] = "host"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One kind of samples: its table, and of each column of numbers whether they are real."""

    table: str
    columns: Mapping[str, bool]

    def key(self, gpu_id: int) -> tuple[str, tuple[int, ...]]:
        """(condition, its values) of one source."""
        return ("1", ()) if self is HOST else ("gpu_id = ?", (gpu_id,))


_NUMBERS = {"float | None": True, "int | None": False, "bool | None": False}


def _series(table: str, record: type) -> Series:
    return Series(table, {one.name: _NUMBERS[one.type] for one in fields(record) if one.type in _NUMBERS})


GPU = _series("gpu_samples", GpuSample)
SLOW = _series("gpu_slow_samples", GpuSlowSample)
HOST = _series("host_samples", HostSample)
