"""Read the host through psutil. Only the sampler process does this."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import psutil

from gputui.store.series import HostSample

# Slowly changing values cost a third of a tick, so they are read less often.
_SELDOM_SECONDS = 5.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where data loaders of every framework put their batches


class HostSampler:
    """Keeps the counters of the previous tick to compute rates. ``state_dir`` is on the file system
    whose space is reported."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._cpu_count = psutil.cpu_count()
        self._cpu: tuple[float, float] | None = None
        self._counters: tuple[float, dict[str, int]] | None = None
        self._read_seldom_at: float | None = None
        self._swap_used_bytes: int | None = None
        self._disk: tuple[int, int] | None = None
        self._shared: tuple[int, int] | None = None

    def sample(self, at: float, now: float) -> HostSample:
        """The host at ``at`` (UTC unix seconds); ``now`` is monotonic and measures the time between
        ticks."""
        counters = {**_disk_counters(), **_network_counters()}
        before = self._counters
        self._counters = (now, counters)
        memory = psutil.virtual_memory()
        if self._read_seldom_at is None or now - self._read_seldom_at >= _SELDOM_SECONDS:
            self._read_seldom_at = now
            self._swap_used_bytes = _swap_used_bytes()
            self._disk = _space(self._state_dir)
            self._shared = _space(_SHARED_MEMORY)
        disk_used, disk_total = self._disk or (None, None)
        shared_used, shared_total = self._shared or (None, None)

        def rate(name: str) -> float | None:
            if before is None or name not in counters or name not in before[1] or now <= before[0]:
                return None
            difference = counters[name] - before[1][name]
            if difference >= 0:
                return difference / (now - before[0])
            return None

        return HostSample(
            at=at,
            cpu_percent=self._cpu_percent(),
            cpu_count=self._cpu_count,
            load_1m=_load(),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            swap_used_bytes=self._swap_used_bytes,
            disk_read_bytes_per_second=rate("read"),
            disk_write_bytes_per_second=rate("write"),
            disk_used_bytes=disk_used,
            disk_total_bytes=disk_total,
            shm_used_bytes=shared_used,
            shm_total_bytes=shared_total,
            network_received_bytes_per_second=rate("received"),
            network_sent_bytes_per_second=rate("sent"),
        )

    def _cpu_percent(self) -> float | None:
        """The share of all CPUs that was busy since the previous tick."""
        times = psutil.cpu_times()
        # User time includes guest time. Waiting for a disk counts as idle.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before = self._cpu
        self._cpu = (total, idle)
        if before is None or total <= before[0]:
            return None
        share = 1.0 - (idle - before[1]) / (total - before[0])
        return min(100.0, max(0.0, 100.0 * share))


def _disk_counters() -> dict[str, int]:
    counters = psutil.disk_io_counters(nowrap=False)
    if counters is None:
        return {}
    return {"read": counters.read_bytes, "write": counters.write_bytes}


def _network_counters() -> dict[str, int]:
    """The counters of all interfaces except the loopback, over which training processes of one host
    talk."""
    interfaces: dict[str, Any] = psutil.net_io_counters(pernic=True, nowrap=False)
    others = [counters for name, counters in interfaces.items() if name != "lo"]
    if not others:
        return {}
    return {
        "received": sum(counters.bytes_recv for counters in others),
        "sent": sum(counters.bytes_sent for counters in others),
    }


def _space(path: Path) -> tuple[int, int] | None:
    try:
        usage = psutil.disk_usage(str(path))
    except OSError:
        return None
    # What is reserved for root, or by a quota, is not to be had.
    return usage.used, usage.used + usage.free


def _swap_used_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(psutil.swap_memory().used)
    return None


def _load() -> float | None:
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return None
