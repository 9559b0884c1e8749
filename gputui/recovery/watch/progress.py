"""How long a run may say nothing: a function of what its own history shows. All durations are in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "first steps", "steps", "end"]

# A silence is explained up to so many times the longest one that was seen to end well: a validation on a busy disk
# may take twice as long as the one before.
HISTORY_FACTOR = 3.0
# A longer one is a clock that was set, or a pause that somebody made, rather than what the run needs.
LONGEST_GAP_SECONDS = 7200.0
# Compilation and autotuning fall into the first steps (NVRx leaves out five; compiled code with a few shapes needs
# more).
EARLY_LINES = 10
# With no history at all, starting up may take ten times the shortest hang, and the first steps five times.
START_FACTOR, EARLY_FACTOR = 10.0, 5.0

# A rank that is stopped, or ranks that all wait for each other and for nothing beyond the machine, tell more than a
# silence does: for that, a third of the shortest hang will do.
EVIDENT_SHARE = 1 / 3
# Ranks may pause together for a part of what a silence was once explained by.
IDLE_SHARE = 2 / 3
# From then on the ranks are looked at, so that it is known what they did all the while.
LOOK_AFTER_SECONDS = 4.0

_LAST_EVENTS = frozenset({"end", "stop"})


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """What one metrics line says of progress. ``at`` is in UTC unix seconds, None if the line tells no time."""

    step: int | None
    at: float | None
    event: str | None = None


@dataclass(slots=True)
class StepPace:
    """What one run's history explains; None if there is none. Attempts are added in their order."""

    longest_start: float | None = None
    longest_early: float | None = None
    longest_gap: float | None = None

    def add_start(self, seconds: float) -> None:
        """How long an attempt took to its first step."""
        self.longest_start = max(self.longest_start or 0.0, min(seconds, LONGEST_GAP_SECONDS))

    def add_gap(self, seconds: float, lines_before: int) -> None:
        """A silence that ended, after so many lines of its attempt."""
        seconds = min(seconds, LONGEST_GAP_SECONDS)
        if lines_before < EARLY_LINES:
            self.longest_early = max(self.longest_early or 0.0, seconds)
        else:
            self.longest_gap = max(self.longest_gap or 0.0, seconds)


@dataclass(slots=True)
class StepProgress:
    """One attempt's progress as its lines tell it. ``phase`` is where it is now."""

    pace: StepPace
    lines: int = 0
    step: int | None = None
    at: float | None = None
    leaving: bool = False

    def add(self, lines: Iterable[ProgressLine], at_most: float = LONGEST_GAP_SECONDS) -> bool:
        """Take the next lines. True when one of them is progress: another step than before, or an event. Lines of a
        side thread that repeat a step are none. ``at_most`` is the longest silence that can lie before or between
        them, independent of their clock."""
        moved = False
        for line in lines:
            if line.event is None and (line.step is None or line.step == self.step):
                continue
            moved = True
            if line.at is not None:
                if self.at is not None and line.at >= self.at and self.lines:
                    self.pace.add_gap(min(line.at - self.at, at_most), self.lines)
                self.at = line.at
            if line.event is None:
                self.step = line.step
                self.lines += 1
                self.leaving = False
            else:
                self.leaving = line.event in _LAST_EVENTS
        return moved

    @property
    def phase(self) -> Phase:
        if self.leaving:
            return "end"
        if self.lines == 0:
            return "start"
        return "first steps" if self.lines < EARLY_LINES else "steps"


@dataclass(frozen=True, slots=True)
class ProgressSilence:
    """For how long there was no progress, and for how long that is explained. ``evident_seconds``: for how long at
    least it must have lasted, and what is seen of the ranks, where that alone tells; None before steps are made."""

    phase: Phase
    seconds: float
    allowed_seconds: float
    evident_seconds: float | None = None

    @property
    def is_worth_a_look(self) -> bool:
        """Whether what the ranks do tells anything by now."""
        return self.is_overdue or (self.evident_seconds is not None and self.seconds >= LOOK_AFTER_SECONDS)

    @property
    def may_be_evident(self) -> bool:
        return self.evident_seconds is not None and self.seconds >= self.evident_seconds

    @property
    def is_overdue(self) -> bool:
        return self.seconds > self.allowed_seconds


def allowed_seconds(pace: StepPace, phase: Phase, hang_after: float) -> float:
    """The longest silence that is still explained; ``hang_after`` is the shortest that may ever count as too long."""
    gap = pace.longest_gap or 0.0
    early = pace.longest_early or 0.0
    match phase:
        case "start" | "end":
            floor, seen = hang_after * START_FACTOR, max(pace.longest_start or 0.0, gap)
        case "first steps":
            floor, seen = hang_after * EARLY_FACTOR, max(early, gap)
        case "steps":
            floor, seen = hang_after, gap
    return max(floor, HISTORY_FACTOR * seen)


def silence(course: StepProgress, seconds: float, hang_after: float) -> ProgressSilence:
    """The state of an attempt's silence of so many seconds."""
    phase = course.phase
    evident = max(hang_after * EVIDENT_SHARE, (course.pace.longest_gap or 0.0) * IDLE_SHARE)
    allowed = allowed_seconds(course.pace, phase, hang_after)
    return ProgressSilence(phase, seconds, allowed, min(evident, allowed) if phase == "steps" else None)
