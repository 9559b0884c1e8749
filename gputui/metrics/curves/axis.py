"""The x axis of a run: from a step and a moment of an attempt to an x."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gputui.metrics.curves.model import Axis, Window
from gputui.store.attempts import Attempt
from gputui.store.metrics.envelopes import Stretch

Pairs = Sequence[tuple[float, float]]
"""(x, y) pairs of an increasing function in order of x, linear in between."""

MOST_MOMENTS = 256
"""Most moments per attempt that are kept for `Frame.moment_at`."""

PACE_SECONDS = 1.0
"""Least time between two kept pairs of a moment and a step."""

MOST_PAIRS = 20_000  # half a megabyte for each attempt, and finer than any screen


class AxisTimeline(Struct, frozen=True):
    """The times of a run's attempts. ``begins`` and ``ends`` are UTC unix seconds by attempt,
    ``trained_before`` the seconds of training before each, without pauses between attempts."""

    origin_at: float | None
    begins: Mapping[int, float] = msgspec.field(default_factory=dict)
    ends: Mapping[int, float] = msgspec.field(default_factory=dict)
    trained_before: Mapping[int, float] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> AxisTimeline:
        begins: dict[int, float] = {}
        ends: dict[int, float] = {}
        before: dict[int, float] = {}
        trained = 0.0
        for attempt in sorted(attempts, key=lambda attempt: attempt.number):
            begin = attempt.began_at
            begins[attempt.number] = begin
            before[attempt.number] = trained
            if attempt.ended_at is not None:
                ends[attempt.number] = attempt.ended_at
                trained += max(0.0, attempt.ended_at - begin)
        return cls(next(iter(begins.values()), None), begins, ends, before)

    def keeps_places_of(self, earlier: AxisTimeline) -> bool:
        """Return whether everything keeps its place on the axis that it had with an earlier
        timeline."""
        same = (earlier.origin_at, earlier.begins, earlier.trained_before)
        return (self.origin_at, self.begins, self.trained_before) == same

    def attempt_at(self, at: float) -> int | None:
        """The attempt that was running at this moment."""
        for number in sorted(self.begins, reverse=True):
            if self.begins[number] <= at:
                if at <= self.ends.get(number, math.inf):
                    return number
                return None
        return None


class AxisMap(Struct, frozen=True):
    """Places on an axis.

    Attributes:
        epochs: (step, epoch) pairs by attempt, needed on the axis of epochs.
        paces: (moment, step) pairs by attempt, needed for what has a moment and no step.
        cuts: by attempt, the first step that a later one did again (`cuts_of`); empty over time.
    """

    axis: Axis
    timeline: AxisTimeline
    epochs: Mapping[int, Pairs] = msgspec.field(default_factory=dict)
    paces: Mapping[int, Pairs] = msgspec.field(default_factory=dict)
    cuts: Mapping[int, float] = msgspec.field(default_factory=dict)

    def place(self, attempt: int, step: int | None, at: float | None) -> float | None:
        """The x of a line; None if it has none."""
        if self.axis == "step":
            if step is None:
                return None
            return float(step)
        if self.axis == "epoch":
            if step is None:
                return None
            return interpolate(self.epochs.get(attempt, ()), step)
        if at is None:
            return None
        return self._of_moment(attempt, at)

    def place_moment(self, at: float, attempt: int | None = None) -> float | None:
        """The x of a moment: over steps and epochs, where the run was then; None if no attempt was
        running."""
        if attempt is None:
            attempt = self.timeline.attempt_at(at)
        if self.axis == "time":
            if self.timeline.origin_at is None:
                return None
            return at - self.timeline.origin_at
        if attempt is None:
            return None
        if self.axis == "trained":
            return self._of_moment(attempt, at)
        step = interpolate(self.paces.get(attempt, ()), at)
        if step is None or self.axis == "step":
            return step
        return interpolate(self.epochs.get(attempt, ()), step)

    def moments(self) -> tuple[tuple[float, float], ...]:
        """(x, moment) pairs in order of x, without redone steps."""
        moments: list[tuple[float, float]] = []
        for attempt, pairs in self.paces.items():
            if not pairs:
                continue
            end = self.cuts.get(attempt, math.inf)
            every = len(pairs) // MOST_MOMENTS + 1
            for at, step in [*pairs[: len(pairs) - 1 : every], pairs[-1]]:
                if step < end and (x := self.place(attempt, int(step), at)) is not None:
                    moments.append((x, at))
        return tuple(sorted(moments))

    def _of_moment(self, attempt: int, at: float) -> float | None:
        timeline = self.timeline
        if timeline.origin_at is None:
            return None
        if self.axis == "time":
            return at - timeline.origin_at
        begin = timeline.begins.get(attempt)
        if begin is None:
            return None
        return timeline.trained_before[attempt] + at - begin


def span_of(stretch: Stretch, axis_map: AxisMap) -> Window | None:
    """The ends of a stretch on the axis; None if they have no place there."""
    start = axis_map.place(stretch.attempt, stretch.min_step, stretch.min_at)
    end = axis_map.place(stretch.attempt, stretch.max_step, stretch.max_at)
    if start is None or end is None:
        return None
    return (start, end)


def in_window(stretches: Sequence[Stretch], axis_map: AxisMap, window: Window | None) -> Sequence[Stretch]:
    """The stretches in a window, or all."""
    if window is None:
        return stretches
    spans = [(stretch, span_of(stretch, axis_map)) for stretch in stretches]
    return [stretch for stretch, span in spans if span and span[0] <= window[1] and span[1] >= window[0]]


def interpolate(pairs: Pairs, x: float) -> float | None:
    """The function at ``x``; beyond an end, the value at the end. None without pairs."""
    if not pairs:
        return None
    place = bisect_right(pairs, x, key=lambda pair: pair[0])
    if place == 0:
        return pairs[0][1]
    if place == len(pairs):
        return pairs[-1][1]
    x0, y0 = pairs[place - 1]
    x1, y1 = pairs[place]
    if x1 > x0:
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return y1


def monotonic_pairs(pairs: Pairs) -> list[tuple[float, float]]:
    """The pairs of a function that never falls: pairs that go back are left out."""
    pairs_in_order: list[tuple[float, float]] = []
    for x, y in pairs:
        if not pairs_in_order or (x > pairs_in_order[-1][0] and y >= pairs_in_order[-1][1]):
            pairs_in_order.append((x, y))
    return pairs_in_order


class Paces:
    """(moment, step) pairs by attempt, both increasing."""

    def __init__(self) -> None:
        self.pairs: dict[int, list[tuple[float, float]]] = {}

    def add(self, attempt: int, step: int, at: float | None) -> None:
        """Add the pair of a line."""
        if at is None:
            return
        paces = self.pairs.setdefault(attempt, [])
        if not paces or (at - paces[-1][0] >= PACE_SECONDS and step >= paces[-1][1]):
            paces.append((at, float(step)))
            thin_out(paces)


def thin_out(pairs: list[tuple[float, float]]) -> None:
    """Drop every other pair but the ends if there are too many."""
    if len(pairs) > MOST_PAIRS:
        del pairs[1:-1:2]
