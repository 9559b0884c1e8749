"""What each rank does while nothing is heard of it, from two looks at its processes and its GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gputui.runs.process_readings import ProcessReading


class Doing(StrEnum):
    """What a rank was seen to do between two looks."""

    COMPUTING = "computes"
    IO = "reads or writes"
    WAITING = "waits"
    SPINNING = "waits in a GPU collective"
    STOPPED = "is stopped by a signal"
    GONE = "has ended"
    UNKNOWN = "cannot be seen"

    @property
    def is_stuck(self) -> bool:
        """Neither computes nor does input or output."""
        return self in (Doing.WAITING, Doing.SPINNING, Doing.STOPPED, Doing.GONE)


# Shares of one core. Ranks that wait in gloo or for a GPU by blocking were measured below 0.01; helpers of a rank (a
# watchdog, an experiment tracker's client) take some hundredths.
BUSY_CPU_SHARE = 0.10
# A rank that waits for a core because the machine is crowded is not idle.
BUSY_QUEUE_SHARE = 0.10
# Heartbeats and log lines are far below, a slow network disk far above.
BUSY_IO_BYTES_PER_SECOND = 16 * 1024
# An NCCL kernel that waits keeps the GPU 100 % "utilised" but leaves its memory alone, and draws little power.
SPIN_UTILIZATION_PERCENT = 90.0
SPIN_MEMORY_UTILIZATION_PERCENT = 2.0
SPIN_POWER_SHARE = 0.7
IDLE_UTILIZATION_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """A rank's GPU now; ``power_share`` is relative to what it drew while the run made steps. None is unknown."""

    utilization_percent: float | None
    memory_utilization_percent: float | None
    power_share: float | None


def doing(
    earlier: Sequence[ProcessReading], later: Sequence[ProcessReading], seconds: float, gpu: GpuActivity | None = None
) -> Doing:
    """What a rank, which is one or several processes, did in the ``seconds`` between two looks."""
    if not later:
        return Doing.GONE
    if seconds <= 0:
        return Doing.UNKNOWN
    before = {(process.pid, process.start_ticks): process for process in earlier}
    cpu = queued = 0.0
    moved = 0
    for process in later:
        was = before.get((process.pid, process.start_ticks))
        cpu += process.cpu_seconds - (was.cpu_seconds if was else 0.0)
        if process.queued_seconds is not None:
            queued += process.queued_seconds - ((was.queued_seconds or 0.0) if was else 0.0)
        if process.io_bytes is None:
            return Doing.UNKNOWN
        moved += process.io_bytes - ((was.io_bytes or 0) if was else 0)
    if any(process.state == "D" for process in later) or moved / seconds >= BUSY_IO_BYTES_PER_SECOND:
        return Doing.IO
    # The main process decides: one whose workers alone are stopped still shows by itself what it does. One that is
    # held back by being stopped again and again gets on.
    if min(later, key=lambda process: process.start_ticks).state == "T" and cpu / seconds < BUSY_CPU_SHARE:
        return Doing.STOPPED
    if gpu is not None and gpu.utilization_percent is not None and gpu.utilization_percent > IDLE_UTILIZATION_PERCENT:
        return Doing.SPINNING if _spins(gpu) else Doing.COMPUTING
    if cpu / seconds >= BUSY_CPU_SHARE or queued / seconds >= BUSY_QUEUE_SHARE:
        return Doing.COMPUTING
    return Doing.WAITING


def _spins(gpu: GpuActivity) -> bool:
    """Whether a busy GPU only waits for another one. Told only where memory traffic is known and nothing speaks
    against it: a kernel that computes in registers alone would otherwise look the same."""
    if gpu.utilization_percent is None or gpu.utilization_percent < SPIN_UTILIZATION_PERCENT:
        return False
    if gpu.memory_utilization_percent is None or gpu.memory_utilization_percent > SPIN_MEMORY_UTILIZATION_PERCENT:
        return False
    return gpu.power_share is not None and gpu.power_share < SPIN_POWER_SHARE
