"""The kinds of samples: their tables and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOST_ID = 0
"""Stands for the host where others give a ``gpu_id``."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One kind of samples: its table, and of each column whether it is a real number."""

    table: str
    columns: Mapping[str, bool]

    def key(self, gpu_id: int) -> tuple[str, tuple[int, ...]]:
        """(condition, its values) of one source."""
        return ("1", ()) if self is HOST else ("gpu_id = ?", (gpu_id,))


GPU = Series(
    "gpu_samples",
    {
        "utilization_percent": True, "memory_utilization_percent": True, "memory_used_bytes": False,
        "memory_reserved_bytes": False, "memory_total_bytes": False, "temperature_celsius": True,
        "power_watts": True, "power_limit_watts": True, "sm_clock_mhz": False, "memory_clock_mhz": False,
        "performance_state": False,
    },
)  # fmt: skip
SLOW = Series(
    "gpu_slow_samples",
    {
        "fan_percent": True, "memory_temperature_celsius": True, "pcie_generation": False, "pcie_width": False,
        "pcie_received_bytes_per_second": True, "pcie_sent_bytes_per_second": True,
        "nvlink_received_bytes_per_second": True, "nvlink_sent_bytes_per_second": True, "ecc_corrected": False,
        "ecc_uncorrected": False, "row_remap_pending": False, "row_remap_failed": False, "energy_joules": True,
    },
)  # fmt: skip
HOST = Series(
    "host_samples",
    {
        "cpu_percent": True, "cpu_count": False, "load_1m": True, "memory_used_bytes": False,
        "memory_total_bytes": False, "swap_used_bytes": False, "disk_read_bytes_per_second": True,
        "disk_write_bytes_per_second": True, "disk_used_bytes": False, "disk_total_bytes": False,
        "shm_used_bytes": False, "shm_total_bytes": False, "network_received_bytes_per_second": True,
        "network_sent_bytes_per_second": True,
    },
)  # fmt: skip
