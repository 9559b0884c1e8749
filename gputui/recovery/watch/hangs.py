"""Activity of the ranks of a silent attempt, and the verdict whether it hangs. Pure; durations are
in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from gputui.core import units
from gputui.recovery.watch.rules import FINDINGS, Observation
from gputui.recovery.watch.silence import ProgressSilence
from gputui.runs.process_readings import ProcessReading

# Share of one core. Ranks that block in gloo or on a GPU were measured below 0.01; helper threads
# (a watchdog, the client of an experiment tracker) take some hundredths. A rank that waits as long
# for a core on a busy machine is not idle either.
BUSY_SHARE = 0.10
# Of the main thread of the first process of an attempt with one rank, which takes below 0.01 where it blocks: a
# validation may be light. One of several ranks may poll for the others with as much.
BUSY_MAIN_SHARE = 0.03
# Of a process that was started in the silence: that is what the attempt waits for, and it need not be fast.
BUSY_CHILD_SHARE = 0.005
# Heartbeats and log lines are far below, a slow network disk far above.
BUSY_IO_BYTES_PER_SECOND = 16 * 1024
# On connections beyond the attempt, over half a minute. The heartbeats of trackers are below, a slow upload above.
BUSY_NETWORK_BYTES_PER_SECOND = 1024
# A waiting NCCL kernel shows 100 % utilisation, but hardly uses memory and draws little power.
SPIN_UTILIZATION_PERCENT = 90.0
SPIN_MEMORY_UTILIZATION_PERCENT = 2.0
SPIN_POWER_SHARE = 0.7
IDLE_UTILIZATION_PERCENT = 5.0
# How long a single rank may work while all others wait for it, for example to validate or save.
LONE_WORKER_SECONDS = 1800.0
LONE_WORKER_FACTOR = 10.0  # so many slow steps in a row are no chance
# How long a rank must be stopped before it counts as a hang.
STOPPED_SECONDS = 10.0


class Doing(StrEnum):
    """The activity of a rank between two snapshots."""

    COMPUTING = "computes"
    IO = "reads or writes"
    WAITING = "waits"
    SPINNING = "waits in a GPU collective"
    STOPPED = "is stopped by a signal"
    GONE = "has ended"
    UNKNOWN = "cannot be seen"

    @property
    def is_stuck(self) -> bool:
        """True if the rank neither computes nor does input or output."""
        return self in (Doing.WAITING, Doing.SPINNING, Doing.STOPPED, Doing.GONE)


class GpuActivity(Struct, frozen=True):
    """The current load of a rank's GPU; None is unknown.

    ``power_share`` is relative to its power while the run made steps.
    """

    utilization_percent: float | None
    memory_utilization_percent: float | None
    power_share: float | None

    @property
    def spins(self) -> bool:
        """True if a busy GPU only waits for another one. All values must be known and agree: a
        kernel that computes in registers looks similar."""
        used = self.utilization_percent
        memory = self.memory_utilization_percent
        if used is None or memory is None or self.power_share is None:
            return False
        is_waiting = used >= SPIN_UTILIZATION_PERCENT and memory <= SPIN_MEMORY_UTILIZATION_PERCENT
        return is_waiting and self.power_share < SPIN_POWER_SHARE


def younger_than(processes: Iterable[ProcessReading], seconds: float) -> list[ProcessReading]:
    """The processes that were started in the last ``seconds``."""
    return [process for process in processes if process.age_seconds <= seconds]


def doing(
    earlier: Sequence[ProcessReading],
    later: Sequence[ProcessReading],
    seconds: float,
    gpu: GpuActivity | None = None,
    silent_seconds: float = 0.0,
    *,
    is_only: bool = False,
) -> Doing:
    """Determine the activity of a rank, of one or several processes, between two snapshots.

    Args:
        earlier: the rank's processes in the first snapshot.
        later: the rank's processes in the second.
        seconds: the time between the snapshots.
        silent_seconds: processes that are younger were started in the silence.
        is_only: the attempt has no other rank.
    """
    if not later:
        return Doing.GONE
    if seconds <= 0 or any(process.io_bytes is None for process in later):
        return Doing.UNKNOWN
    before = {(process.pid, process.start_ticks): process for process in earlier}
    uses = [_use_since(before.get((process.pid, process.start_ticks)), process) for process in later]
    moved_bytes = sum(use.io_bytes or 0 for use in uses)
    if moved_bytes / seconds >= BUSY_IO_BYTES_PER_SECOND or any(process.state == "D" for process in later):
        return Doing.IO
    main = min(uses, key=lambda use: use.start_ticks)
    cpu_seconds = sum(use.cpu_seconds for use in uses)
    awaited_seconds = sum(use.cpu_seconds for use in younger_than(uses, silent_seconds))
    main_seconds = (main.main_seconds or 0.0) if is_only else 0.0
    is_busy = (
        cpu_seconds / seconds >= BUSY_SHARE
        or main_seconds / seconds >= BUSY_MAIN_SHARE
        or awaited_seconds / seconds >= BUSY_CHILD_SHARE
    )
    # The main process decides, not its workers. A process that is stopped only now and then still
    # uses the CPU.
    if main.state == "T" and not is_busy:
        return Doing.STOPPED
    if gpu is not None and (gpu.utilization_percent or 0.0) > IDLE_UTILIZATION_PERCENT:
        if gpu.spins:
            return Doing.SPINNING
        return Doing.COMPUTING
    queued_seconds = sum(use.queued_seconds or 0.0 for use in uses)
    if is_busy or queued_seconds / seconds >= BUSY_SHARE:
        return Doing.COMPUTING
    return Doing.WAITING


def _use_since(before: ProcessReading | None, process: ProcessReading) -> ProcessReading:
    """A reading whose counters begin at an earlier one; without one, at the start of the process."""
    if before is None:
        return replace(process, main_seconds=None)
    queued_seconds = None
    if process.queued_seconds is not None:
        queued_seconds = process.queued_seconds - (before.queued_seconds or 0.0)
    main_seconds = None
    if process.main_seconds is not None and before.main_seconds is not None:
        main_seconds = process.main_seconds - before.main_seconds
    return replace(
        process,
        cpu_seconds=process.cpu_seconds - before.cpu_seconds,
        io_bytes=(process.io_bytes or 0) - (before.io_bytes or 0),
        queued_seconds=queued_seconds,
        main_seconds=main_seconds,
    )


def is_stuck(observation: Observation) -> bool:
    return FINDINGS[observation.kind].ends_on == "hang"


class RankActivity(Struct, frozen=True):
    """The activity of ranks during a silence, and further signs of a hang.

    Attributes:
        ranks: what each of them does; a single process has the rank None.
        launcher_stopped: the ranks' launcher is stopped too.
        meets: the run has written metrics or has several ranks, so that idleness is wrong; another
            program may be meant to wait, and is only reported.
        alone_seconds: time since several ranks were last at work in this silence.
        is_closed: no rank has a connection beyond the attempt.
        exchanges: its connections beyond the attempt move data.
        has_program: a program that was started in the silence still runs.
        is_patient: waiting ranks get all the time that history explains.
    """

    ranks: Mapping[int | None, Doing]
    launcher_stopped: bool = False
    meets: bool = True
    alone_seconds: float = math.inf
    is_closed: bool = False
    is_patient: bool = False
    exchanges: bool = False
    has_program: bool = False

    def that(self, *doings: Doing) -> list[int | None]:
        """The ranks that do one of these."""
        return [rank for rank, what in self.ranks.items() if what in doings]

    @property
    def busy(self) -> list[int | None]:
        """The ranks that compute, do input or output, or cannot be seen."""
        return [rank for rank, what in self.ranks.items() if not what.is_stuck]


def judge(silence: ProgressSilence, activity: RankActivity) -> Observation | None:
    """The verdict on an attempt's silence (``hang``, ``rank_left_early``, ``slow``, ``paused``); None while it is
    explained."""
    if not activity.ranks:
        return None
    if silence.is_overdue:
        return _overdue(silence, activity)
    return _evident(silence, activity)


def _evident(silence: ProgressSilence, activity: RankActivity) -> Observation | None:
    """The verdict on an explained silence, by the ranks' activity alone: some are stopped although
    the launcher is not, or all wait for each other, with nothing that could wake them."""
    count = len(activity.ranks)
    if silence.evident_seconds is None or count < 2 or activity.launcher_stopped:
        return None
    quiet = f"nothing new for {units.duration(silence.seconds)}"
    stopped = activity.that(Doing.STOPPED)
    if stopped and len(stopped) < count:
        return _hang(silence, activity, quiet, STOPPED_SECONDS)
    is_spinning = len(activity.that(Doing.SPINNING, Doing.GONE)) == count
    if activity.busy or stopped or not (activity.is_closed or is_spinning):
        return None
    verdict = _hang(silence, activity, quiet, silence.evident_seconds)
    if verdict.rank is None and activity.is_patient:
        return None
    return verdict


def _overdue(silence: ProgressSilence, activity: RankActivity) -> Observation:
    """The verdict on a silence that is longer than explained."""
    missing = "no first step" if silence.phase == "start" else "nothing new"
    lasts = units.duration(silence.seconds)
    explained = units.duration(silence.allowed_seconds)
    quiet = f"{missing} for {lasts} where its history explains {explained}"
    is_all_stopped = len(activity.that(Doing.STOPPED)) == len(activity.ranks)
    if is_all_stopped and (activity.launcher_stopped or None in activity.ranks):
        return _seen(silence, "paused", f"all of it is stopped by a signal, {quiet}")
    if activity.busy:
        return _overdue_busy(silence, activity, quiet)
    return _overdue_idle(silence, activity, quiet)


def _overdue_idle(silence: ProgressSilence, activity: RankActivity, quiet: str) -> Observation:
    """The verdict on ranks of which none is at work, unless another program explains that."""
    if activity.exchanges:
        return _seen(silence, "slow", f"it exchanges data with another program, {quiet}")
    if silence.seconds <= silence.long_seconds:
        if activity.has_program:
            return _seen(silence, "slow", f"it waits for a program that it started, {quiet}")
        if not activity.is_closed and not activity.that(Doing.STOPPED, Doing.GONE):
            return _seen(silence, "slow", f"it waits with an open connection to another program, {quiet}")
    if activity.meets:
        return _hang(silence, activity, quiet)
    return _seen(silence, "slow", f"it neither computes nor reads or writes, {quiet}")


def _overdue_busy(silence: ProgressSilence, activity: RankActivity, quiet: str) -> Observation:
    """The verdict on ranks of which some are at work: a hang if one has computed alone for very long."""
    first, *others = activity.busy
    does = activity.ranks[first]
    if not others and len(activity.ranks) > 1 and does is Doing.COMPUTING:
        longest = max(LONE_WORKER_SECONDS, LONE_WORKER_FACTOR * silence.allowed_seconds)
        if min(silence.seconds, activity.alone_seconds) > longest:
            return _seen(silence, "hang", f"it computes while all others wait for it, {quiet}", first)
    name = "it" if first is None else f"rank {first}"
    lone_rank = None if others else first
    return _seen(silence, "slow", f"{quiet}; {name} {does}", lone_rank)


def _hang(silence: ProgressSilence, activity: RankActivity, quiet: str, hold_seconds: float = 0.0) -> Observation:
    """A hang, by the rank that was stopped or has ended, if there is one."""
    stopped = activity.that(Doing.STOPPED)
    gone = activity.that(Doing.GONE)
    if stopped:
        return _seen(silence, "hang", f"stopped by a signal (SIGSTOP), {quiet}", stopped[0], hold_seconds)
    if gone and len(gone) < len(activity.ranks):
        return _seen(silence, "rank_left_early", f"the others wait for it, {quiet}", gone[0], hold_seconds)
    who = "no rank computes, reads"
    if len(activity.ranks) == 1:
        who = "it neither computes nor reads"
    return _seen(silence, "hang", f"{who} or writes, {quiet}", rank=None, hold_seconds=hold_seconds)


def _seen(
    silence: ProgressSilence, kind: str, text: str, rank: int | None = None, hold_seconds: float = 0.0
) -> Observation:
    return Observation(
        kind, silence.seconds, silence.allowed_seconds, text, since=silence.step, rank=rank, hold_seconds=hold_seconds
    )
