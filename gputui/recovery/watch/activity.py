"""The activity of a rank during a silence, from two snapshots of its processes and its GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from gputui.runs.process_readings import ProcessReading


class Doing(StrEnum):
    """What a rank did between two snapshots."""

    COMPUTING = "computes"
    IO = "reads or writes"
    WAITING = "waits"
    SPINNING = "waits in a GPU collective"
    STOPPED = "is stopped by a signal"
    GONE = "has ended"
    UNKNOWN = "cannot be seen"

    @property
    def is_stuck(self) -> bool:
        """Whether the rank neither computes nor does input or output."""
        return self in (Doing.WAITING, Doing.SPINNING, Doing.STOPPED, Doing.GONE)


# Share of one core. Ranks that block in gloo or on a GPU were measured below 0.01; helper threads (a watchdog, the
# client of an experiment tracker) take some hundredths.
BUSY_CPU_SHARE = 0.10
# A rank that waits for a core on a busy machine is not idle.
BUSY_QUEUE_SHARE = 0.10
# Heartbeats and log lines are far below, a slow network disk far above.
BUSY_IO_BYTES_PER_SECOND = 16 * 1024
# A waiting NCCL kernel shows 100 % utilisation, but hardly uses memory and draws little power.
SPIN_UTILIZATION_PERCENT = 90.0
SPIN_MEMORY_UTILIZATION_PERCENT = 2.0
SPIN_POWER_SHARE = 0.7
IDLE_UTILIZATION_PERCENT = 5.0


class GpuActivity(Struct, frozen=True):
    """The current load of a rank's GPU. ``power_share`` is relative to its power while the run made steps. None is
    unknown."""

    utilization_percent: float | None
    memory_utilization_percent: float | None
    power_share: float | None


def doing(
    earlier: Sequence[ProcessReading], later: Sequence[ProcessReading], seconds: float, gpu: GpuActivity | None = None
) -> Doing:
    """What a rank, which is one or several processes, did in the ``seconds`` between two snapshots."""
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
    # The main process decides, not its workers. A process that is stopped only now and then still uses the CPU.
    if min(later, key=lambda process: process.start_ticks).state == "T" and cpu / seconds < BUSY_CPU_SHARE:
        return Doing.STOPPED
    if gpu is not None and gpu.utilization_percent is not None and gpu.utilization_percent > IDLE_UTILIZATION_PERCENT:
        return Doing.SPINNING if _spins(gpu) else Doing.COMPUTING
    if cpu / seconds >= BUSY_CPU_SHARE or queued / seconds >= BUSY_QUEUE_SHARE:
        return Doing.COMPUTING
    return Doing.WAITING


def _spins(gpu: GpuActivity) -> bool:
    """Whether a busy GPU only waits for another one. All values must be known and agree: a kernel that computes in
    registers looks similar."""
    if gpu.utilization_percent is None or gpu.utilization_percent < SPIN_UTILIZATION_PERCENT:
        return False
    if gpu.memory_utilization_percent is None or gpu.memory_utilization_percent > SPIN_MEMORY_UTILIZATION_PERCENT:
        return False
    return gpu.power_share is not None and gpu.power_share < SPIN_POWER_SHARE
