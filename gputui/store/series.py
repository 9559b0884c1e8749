"""The declaration of all values of GPUs and host.

The samplers fill these records, send them through a pipe, and the recorder stores them as rows, so
that a new field needs a column in schema.sql; a field of `GpuSlowSample` is also in the JSON of
`gputui gpus`. None means that the driver gave no
value; it is never replaced by 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

HOST_ID = 0
"""The ``gpu_id`` of the host."""

GpuState = Literal["ok", "stale", "lost", "error"]
"""Only views know ``stale``: the newest sample is too old."""

_NUMBERS = {"float | None": True, "int | None": False, "bool | None": False}


class GpuFacts(Struct, frozen=True):
    """Values that do not change while the driver is loaded; read once per session.

    Attributes:
        power_reading: What `GpuSample` has as its power: the instantaneous field, or the driver's value (a mean over
            one second on Ampere and later, except GA100).
        memory_is_unified: The memory is the host's: how much is in use says nothing about who uses the GPU.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    power_limit_default_watts: float | None = None
    power_limit_max_watts: float | None = None
    temperature_slowdown_celsius: float | None = None
    temperature_shutdown_celsius: float | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    compute_capability: str | None = None
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    power_reading: Literal["instant", "driver"] | None = None
    memory_is_unified: bool = False


class GpuSample(Struct, frozen=True):
    """The fast tier, read every tick.

    Attributes:
        detail: What the driver says, if the GPU is lost or not read.
        power_limit_watts: May be some seconds older than the sample.
        memory_clock_mhz: May be some seconds older than the sample.
        performance_state: May be some seconds older than the sample.
        throttle_reasons: Empty without throttling, None if the driver does not say.
    """

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


class GpuSlowSample(Struct, frozen=True):
    """The slow tier, read every few seconds: values that are expensive to read or change rarely.

    Attributes:
        ecc_corrected: Corrected errors of memory since the driver began.
        ecc_uncorrected: Uncorrected errors of memory since the driver began.
        row_remap_pending: A row of memory is replaced at the next reset.
        row_remap_failed: A row of memory could not be replaced.
        energy_joules: A counter that begins again with the driver.
        pcie_replays: A counter of repeated transfers.
        encoder_percent: The use of the unit that encodes video.
        decoder_percent: The use of the unit that decodes video.
    """

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


class GpuProcess(Struct, frozen=True):
    """A process that holds memory of a GPU.

    Attributes:
        kind: As nvidia-smi's: compute, graphics, or a client of MPS.
        start_ticks: Ties the PID to this machine's procfs. None if the PID is not visible here (another PID
            namespace), and such a PID is never signalled.
    """

    pid: int
    memory_bytes: int | None = None
    kind: Literal["C", "G", "M"] = "C"
    user: str | None = None
    command: str | None = None
    start_ticks: int | None = None
    sm_percent: int | None = None


class HostSample(Struct, frozen=True, tag="host", tag_field="kind"):
    """One tick of the host.

    Attributes:
        at: UTC unix seconds.
        load_1m: The load average of the last minute.
        disk_used_bytes: On the file system of the home.
        disk_total_bytes: The size of the file system of the home.
        shm_used_bytes: In ``/dev/shm``.
        shm_total_bytes: The size of ``/dev/shm``.
        disk_read_bytes_per_second: A mean since the previous tick, as every rate is; None in the first one.
    """

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


class Series(Struct, frozen=True, eq=False):
    """One kind of samples: its table, and its numeric columns, each with whether it is REAL."""

    table: str
    columns: Mapping[str, bool]

    def key(self, gpu_id: int) -> tuple[str, tuple[int, ...]]:
        """The SQL condition that selects one source, and its values."""
        if self is HOST:
            return ("1", ())
        return ("gpu_id = ?", (gpu_id,))


def _series(table: str, record: type) -> Series:
    return Series(table, {name: _NUMBERS[kind] for name, kind in record.__annotations__.items() if kind in _NUMBERS})


GPU = _series("gpu_samples", GpuSample)
SLOW = _series("gpu_slow_samples", GpuSlowSample)
HOST = _series("host_samples", HostSample)
