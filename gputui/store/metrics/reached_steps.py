"""The step that an attempt may have reached at a moment, between and after its lines."""

from __future__ import annotations

import itertools
import math

from gputui.store.metrics.step_lines import LineFilter, SourceLines, StepLines

_MOST_GAPS = 8  # a median over a few is enough, and each is a query
_MOST_ATTEMPTS = 3  # older attempts may have had another pace


def latest_step(lines: StepLines, attempt: int, at: float, since: float) -> int | None:
    """The latest step that the attempt may have reached at a moment; None if its lines since ``since`` do not tell.

    It is before the step of the next line or, of lines without a time, any of the next block. After the last line it
    is as far from it as the lines before are from each other at most.
    """
    newest = lines.newest(attempt, LineFilter(times=(since, at)))
    bounds = [bound for source in lines.sources(attempt) if (bound := _before_next_line(source, at)) is not None]
    if bounds:
        _, step = min(bounds)
        if newest is None:
            return step
        return max(step, newest.step)
    if newest is None:
        return None
    gaps = []
    if (gap := widest_gap(lines, attempt, at, since)) is not None:
        gaps.append(gap)
    # Attempts that failed before their second line tell nothing, however many they were.
    earlier = (widest_gap(lines, number) for number in range(attempt - 1, 0, -1))
    gaps += itertools.islice((gap for gap in earlier if gap is not None), _MOST_ATTEMPTS)
    if gaps:
        return newest.step + max(1, *gaps) - 1
    return None


def widest_gap(lines: StepLines, attempt: int, at: float = math.inf, since: float = 0.0) -> int | None:
    """The most steps between two of the last times of an attempt's lines; None if there is but one."""
    steps: list[int] = []
    while len(steps) <= _MOST_GAPS:
        line = lines.newest(attempt, LineFilter(times=(since, at)))
        if line is None:
            break
        at = math.nextafter(line.at, -math.inf)
        steps.append(line.step)
    return max((later - earlier for later, earlier in itertools.pairwise(steps)), default=None)


def _before_next_line(source: SourceLines, at: float) -> tuple[float, int] | None:
    """The time of a source's next line or block after a moment, and the last step that may precede it."""
    block: tuple[float, int] | None = None
    for line in source.after(at).lines(LineFilter(times=(math.nextafter(at, math.inf), math.inf))):
        if line.states_time:
            return block or (line.at, line.step - 1)
        if block is not None and line.at != block[0]:
            break
        block = (line.at, line.step)
    return block
