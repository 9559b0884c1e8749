"""The losses of a run's steps: which are finite, and since when none is."""

from __future__ import annotations

import itertools
import math

from msgspec.structs import replace

from gputui.store.metrics.step_lines import LineFilter, StepLine, StepLines

# A run is ended for bad values only after this many lines in a row.
_UNSOUND_LINES = 5
_FINITE = LineFilter(loss="finite")
_KNOWN = LineFilter(loss="known")


def finite_losses(lines: StepLines, attempt: int, count: int, *, up_to_step: int | None = None) -> list[float]:
    """Losses of the attempt that are finite numbers, of the first source with one.

    Args:
        count: At most so many.
        up_to_step: The last ones up to this step are asked for, None for the first ones.
    """
    where = _FINITE
    if up_to_step is not None:
        where = LineFilter(loss="finite", steps=(-math.inf, up_to_step))
    for source in lines.sources(attempt):
        newest_or_first = source.lines(where, is_newest_first=up_to_step is not None)
        losses = [line.loss for line in itertools.islice(newest_or_first, count) if line.loss is not None]
        if losses:
            return losses
    return []


def last_sound_step(lines: StepLines, attempt: int, before_step: int | None = None) -> int | None:
    """The last step, or the last before another, whose loss was a finite number; None if there is none."""
    where = _FINITE
    if before_step is not None:
        where = LineFilter(loss="finite", steps=(-math.inf, before_step - 1))
    newest = (source.newest(where) for source in lines.sources(attempt))
    return max((line.step for line in newest if line is not None), default=None)


def unsound_since(lines: StepLines, attempt: int) -> StepLine | None:
    """The line since which no loss of the attempt was a finite number; None if its newest one was, or has none."""
    for source in lines.sources(attempt):
        newest = source.newest(_KNOWN)
        if newest is None or newest.loss is not None:
            continue
        sound = source.newest(_FINITE)
        if sound is not None:
            source = replace(source, begin=sound.end)
        return source.first(_KNOWN)
    return None


def failed_at(lines: StepLines, attempt: int, step: int) -> float | None:
    """The time of the attempt's last line of a step at which its numbers went wrong; None if it has none.

    Its last few lines are left out: such a failure shows only in the lines that follow.
    """
    times = []
    for source in lines.sources(attempt):
        newest = source.newest(skipped=_UNSOUND_LINES - 1)
        if newest is None:
            continue
        line = replace(source, end=newest.end).newest(LineFilter(steps=(step, step), ranks="all"))
        if line is not None:
            times.append(line.at)
    return min(times, default=None)
