"""The silence of an attempt: how much of it its history explains, what its ranks do meanwhile, and
whether it hangs.

Pure. ProgressSilence alone never decides; the activity of the ranks does. Durations are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from gputui.core import units
from gputui.recovery.watch.rules import FINDINGS, Observation
from gputui.runs.process_readings import ProcessReading
from gputui.store.metrics.watched import WatchedLine

# --- progress ---------------------------------------------------------------------------------

Phase = Literal["start", "first steps", "steps", "end"]

# A silence is explained up to this multiple of the longest one that ended well: a validation on a
# busy disk may take twice as long as the one before.
HISTORY_FACTOR = 3.0
# A longer gap is due to a clock that was set, or to a person's pause.
LONGEST_GAP_SECONDS = 7200.0
# Compilation and autotuning happen in the first steps (NVRx ignores five; code compiled for a few
# shapes needs more).
EARLY_LINES = 10
# Without history, the start may take ten times the shortest hang, and the first steps five times.
START_FACTOR, EARLY_FACTOR = 10.0, 5.0
# A stopped rank, or ranks that only wait for each other, are stronger evidence than a silence: a
# third of the shortest hang suffices.
EVIDENT_SHARE = 1 / 3
# Ranks may pause together for this share of the longest explained silence.
IDLE_SHARE = 2 / 3
# Ranks are observed after this time, so that their activity during the silence is known.
LOOK_AFTER_SECONDS = 4.0


@dataclass(slots=True)
class StepPace:
    """The longest silences in a run's history that ended well; 0 if there is none."""

    longest_start: float = 0.0
    longest_early: float = 0.0
    longest_gap: float = 0.0

    def add_start(self, seconds: float) -> None:
        """Add the time that an attempt took to its first step."""
        self.longest_start = max(self.longest_start, min(seconds, LONGEST_GAP_SECONDS))

    def add_gap(self, seconds: float, lines_before: int) -> None:
        """Add a silence that ended, after so many lines of the attempt."""
        seconds = min(seconds, LONGEST_GAP_SECONDS)
        if lines_before < EARLY_LINES:
            self.longest_early = max(self.longest_early, seconds)
        else:
            self.longest_gap = max(self.longest_gap, seconds)


@dataclass(slots=True)
class StepProgress:
    """One attempt's progress, from its lines."""

    pace: StepPace
    lines: int = 0
    step: int | None = None
    at: float | None = None
    leaving: bool = False

    def add(
        self, lines: Iterable[WatchedLine], arrived_at: float | None = None, at_most: float = LONGEST_GAP_SECONDS
    ) -> bool:
        """Add the next lines. True if one of them is progress: a new step or an event; lines that
        repeat a step are none. ``arrived_at`` (unix seconds) replaces missing times; ``at_most``
        limits the silence before and between lines, whatever their times."""
        moved = False
        for line in lines:
            if line.event is None and (line.step is None or line.step == self.step):
                continue
            moved = True
            at = arrived_at if line.at is None else line.at
            if at is not None:
                if self.at is not None and at >= self.at and self.lines:
                    self.pace.add_gap(min(at - self.at, at_most), self.lines)
                self.at = at
            self.leaving = line.event in ("end", "stop")
            if line.event is None:
                self.step = line.step
                self.lines += 1
        return moved

    @property
    def phase(self) -> Phase:
        if self.leaving or self.lines == 0:
            return "end" if self.leaving else "start"
        return "first steps" if self.lines < EARLY_LINES else "steps"


class ProgressSilence(Struct, frozen=True):
    """The time without progress, and the explained part of it. ``evident_seconds``: the time after
    which the ranks' activity alone may decide; None before steps are made."""

    phase: Phase
    seconds: float
    allowed_seconds: float
    evident_seconds: float | None = None
    step: int | None = None

    @property
    def is_worth_a_look(self) -> bool:
        """Whether the ranks should be observed."""
        is_evident = self.evident_seconds is not None and self.seconds >= LOOK_AFTER_SECONDS
        return self.is_overdue or is_evident

    @property
    def may_be_evident(self) -> bool:
        return self.evident_seconds is not None and self.seconds >= self.evident_seconds

    @property
    def is_overdue(self) -> bool:
        return self.seconds > self.allowed_seconds


def silence(course: StepProgress, seconds: float, hang_after: float) -> ProgressSilence:
    """The assessment of a silence; ``hang_after`` is the shortest that may be a hang."""
    phase, pace = course.phase, course.pace
    gap = longest = pace.longest_gap
    factor = 1.0
    if phase == "first steps":
        factor, longest = EARLY_FACTOR, max(pace.longest_early, gap)
    elif phase != "steps":
        factor, longest = START_FACTOR, max(pace.longest_start, gap)
    allowed = max(hang_after * factor, HISTORY_FACTOR * longest)
    evident = min(max(hang_after * EVIDENT_SHARE, gap * IDLE_SHARE), allowed)
    is_stepping = phase == "steps"
    return ProgressSilence(phase, seconds, allowed, evident if is_stepping else None, course.step)


# --- activity ---------------------------------------------------------------------------------


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


# Share of one core. Ranks that block in gloo or on a GPU were measured below 0.01; helper threads
# (a watchdog, the client of an experiment tracker) take some hundredths. A rank that waits as long
# for a core on a busy machine is not idle either.
BUSY_SHARE = 0.10
# Heartbeats and log lines are far below, a slow network disk far above.
BUSY_IO_BYTES_PER_SECOND = 16 * 1024
# A waiting NCCL kernel shows 100 % utilisation, but hardly uses memory and draws little power.
SPIN_UTILIZATION_PERCENT, SPIN_MEMORY_UTILIZATION_PERCENT, SPIN_POWER_SHARE = 90.0, 2.0, 0.7
IDLE_UTILIZATION_PERCENT = 5.0


class GpuActivity(Struct, frozen=True):
    """The current load of a rank's GPU. ``power_share`` is relative to its power while the run made
    steps. None is unknown."""

    utilization_percent: float | None
    memory_utilization_percent: float | None
    power_share: float | None

    @property
    def spins(self) -> bool:
        """Whether a busy GPU only waits for another one. All values must be known and agree: a
        kernel that computes in registers looks similar."""
        used, memory = self.utilization_percent, self.memory_utilization_percent
        if used is None or memory is None or self.power_share is None:
            return False
        is_waiting = used >= SPIN_UTILIZATION_PERCENT and memory <= SPIN_MEMORY_UTILIZATION_PERCENT
        return is_waiting and self.power_share < SPIN_POWER_SHARE


def doing(
    earlier: Sequence[ProcessReading], later: Sequence[ProcessReading], seconds: float, gpu: GpuActivity | None = None
) -> Doing:
    """What a rank, of one or several processes, did in the ``seconds`` between two snapshots."""
    if not later:
        return Doing.GONE
    if seconds <= 0 or any(process.io_bytes is None for process in later):
        return Doing.UNKNOWN
    before = {(process.pid, process.start_ticks): process for process in earlier}
    cpu = queued = moved = 0.0
    for process in later:
        was = before.get((process.pid, process.start_ticks))
        cpu += process.cpu_seconds - (was.cpu_seconds if was else 0.0)
        moved += (process.io_bytes or 0) - ((was.io_bytes or 0) if was else 0)
        if process.queued_seconds is not None:
            queued += process.queued_seconds - ((was.queued_seconds or 0.0) if was else 0.0)
    is_moving = moved / seconds >= BUSY_IO_BYTES_PER_SECOND
    if is_moving or any(process.state == "D" for process in later):
        return Doing.IO
    is_busy = cpu / seconds >= BUSY_SHARE
    # The main process decides, not its workers. A process that is stopped only now and then still
    # uses the CPU.
    if min(later, key=lambda process: process.start_ticks).state == "T" and not is_busy:
        return Doing.STOPPED
    if gpu is not None and (gpu.utilization_percent or 0.0) > IDLE_UTILIZATION_PERCENT:
        return Doing.SPINNING if gpu.spins else Doing.COMPUTING
    return Doing.COMPUTING if is_busy or queued / seconds >= BUSY_SHARE else Doing.WAITING


# --- verdict ----------------------------------------------------------------------------------

# How long a single rank may work while all others wait for it, for example to validate or save.
LONE_WORKER_SECONDS, LONE_WORKER_FACTOR = 1800.0, 10.0
# How long a rank must be stopped before it counts as a hang.
STOPPED_SECONDS = 10.0

Doings = Mapping[int | None, Doing]
"""The activity of each rank; a single process has the rank None."""


def is_stuck(seen: Observation) -> bool:
    """Whether an observation of a silence may end the attempt; others are only shown."""
    return FINDINGS[seen.kind].ends_on == "hang"


def judge(
    silence: ProgressSilence,
    ranks: Doings,
    *,
    launcher_stopped: bool = False,
    meets: bool = True,
    alone_seconds: float = math.inf,
    is_closed: bool = False,
    is_patient: bool = False,
) -> Observation | None:
    """The verdict on an attempt's silence (``hang``, ``rank_left_early``, ``slow``, ``paused``), or
    None while it is explained.

    Args:
        silence: how long it lasts, and what of it is explained.
        ranks: what each of them does.
        launcher_stopped: the ranks' launcher is stopped too.
        meets: the run has written metrics or has several ranks, so that idleness is wrong; another
            program may be meant to wait, and is only reported.
        alone_seconds: time since several ranks were last at work in this silence.
        is_closed: no rank has a connection beyond the attempt.
        is_patient: waiting ranks get all the time that history explains.
    """
    if not ranks:
        return None
    lasts = units.duration(silence.seconds)
    stopped = [rank for rank, what in ranks.items() if what is Doing.STOPPED]
    gone = [rank for rank, what in ranks.items() if what is Doing.GONE]
    busy = [rank for rank, what in ranks.items() if not what.is_stuck]

    def seen(kind: str, text: str, rank: int | None = None, hold_seconds: float = 0.0) -> Observation:
        limit, step = silence.allowed_seconds, silence.step
        return Observation(kind, silence.seconds, limit, text, True, step, rank, hold_seconds)

    def hang(quiet: str, hold_seconds: float = 0.0) -> Observation:
        if stopped:
            text = f"stopped by a signal (SIGSTOP), {quiet}"
            return seen("hang", text, stopped[0], hold_seconds)
        if gone and len(gone) < len(ranks):
            text = f"the others wait for it, {quiet}"
            return seen("rank_left_early", text, gone[0], hold_seconds)
        who = "it neither computes nor reads" if len(ranks) == 1 else "no rank computes, reads"
        return seen("hang", f"{who} or writes, {quiet}", None, hold_seconds)

    if not silence.is_overdue:
        if silence.evident_seconds is None or len(ranks) < 2 or launcher_stopped:
            return None
        # The ranks' activity alone decides: some are stopped although the launcher is not, or all
        # wait for each other, with nothing that could wake them.
        quiet = f"nothing new for {lasts}"
        if stopped and len(stopped) < len(ranks):
            return hang(quiet, STOPPED_SECONDS)
        is_spinning = all(what in (Doing.SPINNING, Doing.GONE) for what in ranks.values())
        if busy or stopped or not (is_closed or is_spinning):
            return None
        found = hang(quiet, silence.evident_seconds)
        return None if found.rank is None and is_patient else found
    missing = "no first step" if silence.phase == "start" else "nothing new"
    explained = units.duration(silence.allowed_seconds)
    quiet = f"{missing} for {lasts} where its history explains {explained}"
    if len(stopped) == len(ranks) and (launcher_stopped or None in ranks):
        return seen("paused", f"all of it is stopped by a signal, {quiet}")
    if not busy:
        if not meets:
            return seen("slow", f"it neither computes nor reads or writes, {quiet}")
        return hang(quiet)
    first, is_alone = busy[0], len(busy) == 1
    if is_alone and len(ranks) > 1 and ranks[first] is Doing.COMPUTING:
        longest = max(LONE_WORKER_SECONDS, LONE_WORKER_FACTOR * silence.allowed_seconds)
        if min(silence.seconds, alone_seconds) > longest:
            return seen("hang", f"it computes while all others wait for it, {quiet}", first)
    name = "it" if first is None else f"rank {first}"
    return seen("slow", f"{quiet}; {name} {ranks[first]}", first if is_alone else None)
