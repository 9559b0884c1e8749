"""The progress of an attempt and its silences: how much of one its history explains.

Pure; durations are in seconds. A silence alone never decides: `hangs` does, by what the ranks do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from gputui.store.metrics.watched import WatchedLine

Phase = Literal["start", "first steps", "steps", "announced", "end"]

# A silence is explained up to this multiple of the longest one that ended well: a validation on a
# busy disk may take twice as long as the one before.
HISTORY_FACTOR = 3.0
# A longer gap is due to a clock that was set, or to a person's pause.
LONGEST_GAP_SECONDS = 7200.0
# Compilation and autotuning happen in the first steps (NVRx ignores five; code compiled for a few
# shapes needs more).
EARLY_LINES = 10
# Without history, the start may take ten times the shortest hang, and the first steps five times. So may a wait that
# an event announced, or for another program.
LONG_FACTOR = 10.0
EARLY_FACTOR = 5.0
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
    """One attempt's progress, from its lines.

    Attributes:
        pace: the silences in the run's history.
        lines: how many had a step.
        step: the newest one.
        at: the time of the newest line (UTC unix seconds).
        leaving: its newest line is the event of its end.
        is_announced: its newest line is an event that tells what begins.
    """

    pace: StepPace
    lines: int = 0
    step: int | None = None
    at: float | None = None
    leaving: bool = False
    is_announced: bool = False

    def add(
        self, lines: Iterable[WatchedLine], arrived_at: float | None = None, at_most: float = LONGEST_GAP_SECONDS
    ) -> bool:
        """Add the next lines.

        Args:
            arrived_at: replaces missing times (UTC unix seconds).
            at_most: limits the silence before and between lines, whatever their times.

        Returns:
            Whether one of them is progress: a new step or an event, not a line that repeats a step.
        """
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
            self.is_announced = line.announces
            if line.event is None:
                self.step = line.step
                self.lines += 1
        return moved

    @property
    def phase(self) -> Phase:
        if self.leaving:
            return "end"
        if self.lines == 0:
            return "start"
        if self.is_announced:
            return "announced"
        if self.lines < EARLY_LINES:
            return "first steps"
        return "steps"


class ProgressSilence(Struct, frozen=True):
    """The time without progress.

    Attributes:
        allowed_seconds: the part that the run's history explains.
        evident_seconds: after so long the ranks' activity alone may decide; None before steps are made.
        step: the last one.
        long_seconds: the explained part of a wait for another program.
    """

    phase: Phase
    seconds: float
    allowed_seconds: float
    evident_seconds: float | None = None
    step: int | None = None
    long_seconds: float = 0.0

    @property
    def is_worth_a_look(self) -> bool:
        is_evident = self.evident_seconds is not None and self.seconds >= LOOK_AFTER_SECONDS
        return self.is_overdue or is_evident

    @property
    def may_be_evident(self) -> bool:
        return self.evident_seconds is not None and self.seconds >= self.evident_seconds

    @property
    def is_overdue(self) -> bool:
        return self.seconds > self.allowed_seconds


def silence(progress: StepProgress, seconds: float, hang_after: float) -> ProgressSilence:
    """The assessment of a silence; ``hang_after`` is the shortest that may be a hang."""
    phase = progress.phase
    pace = progress.pace
    gap = longest = pace.longest_gap
    factor = 1.0
    if phase == "first steps":
        factor = EARLY_FACTOR
        longest = max(pace.longest_early, gap)
    elif phase != "steps":
        factor = LONG_FACTOR
        longest = max(pace.longest_start, gap)
    allowed = max(hang_after * factor, HISTORY_FACTOR * longest)
    evident = min(max(hang_after * EVIDENT_SHARE, gap * IDLE_SHARE), allowed)
    evident_seconds = evident if phase == "steps" else None
    long = max(hang_after * LONG_FACTOR, allowed)
    return ProgressSilence(
        phase, seconds, allowed, evident_seconds=evident_seconds, step=progress.step, long_seconds=long
    )
