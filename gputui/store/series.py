"""The kinds of samples: their tables and columns, as rows and as packs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MILLI = 1000.0
HOST_ID = 0
"""Stands for the host where others give a ``gpu_id``."""

CONDITION = ("state", "throttle_reasons")
"""Columns of a GPU's samples that are one column ``condition`` in packs: a row of ``gpu_conditions``."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One kind of samples: the table of those stored one by one, that of packs, and of each column whether it is a real
    number, which is in thousandths in a pack."""

    rows: str
    packs: str
    columns: Mapping[str, bool]

    def key(self, gpu_id: int) -> tuple[str, tuple[int, ...]]:
        """(condition, its values) of one source."""
        return ("1", ()) if self is HOST else ("gpu_id = ?", (gpu_id,))


GPU = Series(
    "gpu_sample_rows",
    "gpu_sample_packs",
    {
        "utilization_percent": True, "memory_utilization_percent": True, "memory_used_bytes": False,
        "memory_reserved_bytes": False, "memory_total_bytes": False, "temperature_celsius": True,
        "power_watts": True, "power_limit_watts": True, "sm_clock_mhz": False, "memory_clock_mhz": False,
        "performance_state": False, "condition": False,
    },
)  # fmt: skip
SLOW = Series(
    "gpu_slow_sample_rows",
    "gpu_slow_sample_packs",
    {
        "fan_percent": True, "memory_temperature_celsius": True, "pcie_generation": False, "pcie_width": False,
        "pcie_received_bytes_per_second": True, "pcie_sent_bytes_per_second": True,
        "nvlink_received_bytes_per_second": True, "nvlink_sent_bytes_per_second": True, "ecc_corrected": False,
        "ecc_uncorrected": False, "row_remap_pending": False, "row_remap_failed": False, "energy_joules": True,
    },
)  # fmt: skip
HOST = Series(
    "host_sample_rows",
    "host_sample_packs",
    {
        "cpu_percent": True, "cpu_count": False, "load_1m": True, "memory_used_bytes": False,
        "memory_total_bytes": False, "swap_used_bytes": False, "disk_read_bytes_per_second": True,
        "disk_write_bytes_per_second": True, "disk_used_bytes": False, "disk_total_bytes": False,
        "shm_used_bytes": False, "shm_total_bytes": False, "network_received_bytes_per_second": True,
        "network_sent_bytes_per_second": True,
    },
)  # fmt: skip


def stored_names(columns: Sequence[str]) -> list[str]:
    """The columns of packs that hold these columns of samples."""
    return list(dict.fromkeys("condition" if name in CONDITION else name for name in columns))


def pack_columns(series: Series, names: Sequence[str]) -> str:
    """The columns of a pack, as SQL: its count and times, then each of ``names``."""
    assert all(name in series.columns for name in names)
    parts = ", ".join(f"{name}_base, {name}_scale, {name}_codes" for name in names)
    return f"sample_count, at_step, at_base, at_scale, at_codes{', ' if parts else ''}{parts}"


def known_conditions(connection: sqlite3.Connection) -> dict[int, tuple[str, str | None]]:
    """(state, throttle reasons) by their id."""
    rows = connection.execute("SELECT condition_id, state, throttle_reasons FROM gpu_conditions")
    return {number: (state, reasons) for number, state, reasons in rows}
