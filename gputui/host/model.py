"""What the host is at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
