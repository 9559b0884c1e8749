"""How long a run may make no progress, derived from its own history. All durations are in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

Phase = Literal["start", "first steps", "steps", "end"]

# A silence is explained up to this multiple of the longest one that ended well: a validation on a busy disk may take
# twice as long as the one before.
HISTORY_FACTOR = 3.0
# A longer gap is due to a clock that was set, or to a person's pause.
LONGEST_GAP_SECONDS = 7200.0
# Compilation and autotuning happen in the first steps (NVRx ignores five; code compiled for a few shapes needs more).
EARLY_LINES = 10
# Without history, the start may take ten times the shortest hang, and the first steps five times.
START_FACTOR, EARLY_FACTOR = 10.0, 5.0

# A stopped rank, or ranks that only wait for each other, are stronger evidence than a silence: a third of the shortest
# hang suffices.
EVIDENT_SHARE = 1 / 3
# Ranks may pause together for this share of the longest explained silence.
IDLE_SHARE = 2 / 3
# Ranks are observed after this time, so that their activity during the silence is known.
LOOK_AFTER_SECONDS = 4.0

_LAST_EVENTS = frozenset({"end", "stop"})


class ProgressLine(Struct, frozen=True):
    """A metrics line's step, time (UTC unix seconds, None if it has none) and event."""

    step: int | None
    at: float | None
    event: str | None = None


@dataclass(slots=True)
class StepPace:
    """The longest silences in a run's history that ended well; None if there is none. Attempts are added in order."""

    longest_start: float | None = None
    longest_early: float | None = None
    longest_gap: float | None = None

    def add_start(self, seconds: float) -> None:
        """Add the time that an attempt took to its first step."""
        self.longest_start = max(self.longest_start or 0.0, min(seconds, LONGEST_GAP_SECONDS))

    def add_gap(self, seconds: float, lines_before: int) -> None:
        """Add a silence that ended; ``lines_before`` is the number of the attempt's lines before it."""
        seconds = min(seconds, LONGEST_GAP_SECONDS)
        if lines_before < EARLY_LINES:
            self.longest_early = max(self.longest_early or 0.0, seconds)
        else:
            self.longest_gap = max(self.longest_gap or 0.0, seconds)


@dataclass(slots=True)
class StepProgress:
    """One attempt's progress, from its lines."""

    pace: StepPace
    lines: int = 0
    step: int | None = None
    at: float | None = None
    leaving: bool = False

    def add(self, lines: Iterable[ProgressLine], at_most: float = LONGEST_GAP_SECONDS) -> bool:
        """Add the next lines. True if one of them is progress: a new step or an event. Lines that repeat a step are
        none. ``at_most`` limits the silence before and between them, whatever their timestamps."""
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


class ProgressSilence(Struct, frozen=True):
    """The time without progress, and the explained part of it. ``evident_seconds``: the time after which the ranks'
    activity alone may decide; None before steps are made."""

    phase: Phase
    seconds: float
    allowed_seconds: float
    evident_seconds: float | None = None

    @property
    def is_worth_a_look(self) -> bool:
        """Whether the ranks should be observed."""
        return self.is_overdue or (self.evident_seconds is not None and self.seconds >= LOOK_AFTER_SECONDS)

    @property
    def may_be_evident(self) -> bool:
        return self.evident_seconds is not None and self.seconds >= self.evident_seconds

    @property
    def is_overdue(self) -> bool:
        return self.seconds > self.allowed_seconds


def allowed_seconds(pace: StepPace, phase: Phase, hang_after: float) -> float:
    """The longest explained silence; ``hang_after`` is the shortest that may count as a hang."""
    gap = pace.longest_gap or 0.0
    early = pace.longest_early or 0.0
    match phase:
        case "start" | "end":
            floor, longest = hang_after * START_FACTOR, max(pace.longest_start or 0.0, gap)
        case "first steps":
            floor, longest = hang_after * EARLY_FACTOR, max(early, gap)
        case "steps":
            floor, longest = hang_after, gap
    return max(floor, HISTORY_FACTOR * longest)


def silence(course: StepProgress, seconds: float, hang_after: float) -> ProgressSilence:
    """The assessment of an attempt's silence of ``seconds``."""
    phase = course.phase
    evident = max(hang_after * EVIDENT_SHARE, (course.pace.longest_gap or 0.0) * IDLE_SHARE)
    allowed = allowed_seconds(course.pace, phase, hang_after)
    return ProgressSilence(phase, seconds, allowed, min(evident, allowed) if phase == "steps" else None)
