"""Where the lines of a run lie on an x axis, followed as the run grows."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from gputui.metrics.curves.axis import AxisMap, AxisTimeline, Paces, Pairs, span_of
from gputui.metrics.curves.bins import NARROWEST_BIN
from gputui.metrics.curves.epochs import Epochs, epoch_of, epoch_points
from gputui.metrics.curves.lines import EPOCH, CurveLine, StoredLines, read_lines
from gputui.metrics.curves.model import Axis, ChartRequest
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import Stretch


class LinePlace(NamedTuple):
    """Where a line is in its run. ``at`` is UTC unix seconds."""

    attempt: int
    step: int
    at: float | None


class RunAxis:
    """An x axis of a run that takes up new lines, as long as these move no earlier ones.

    Attributes:
        map: the x of a step or a moment.
        start: the lowest x of a line, infinite before the first line.
        end: the highest x of a line, minus infinite before the first line.
    """

    def __init__(self, axis_map: AxisMap, epochs: Epochs, paces: Paces) -> None:
        self.map = axis_map
        self.start = math.inf
        self.end = -math.inf
        self._epochs = epochs
        self._paces = paces

    @classmethod
    def empty(cls) -> RunAxis:
        """The axis of a run without lines."""
        return cls(AxisMap("step", AxisTimeline(None)), Epochs(), Paces())

    @classmethod
    def read(
        cls,
        connection: sqlite3.Connection,
        stored: StoredLines,
        request: ChartRequest,
        timeline: AxisTimeline,
        cuts: Mapping[int, float],
    ) -> RunAxis:
        """The axis with all stored lines. Raises sqlite3.Error."""
        places = [place for stretch in stored.stretches for place in _ends_of(stretch)]
        written: dict[int, list[tuple[float, float]]] = {}
        if request.axis == EPOCH:
            for point in epoch_points(connection, stored.stretches, request.bins):
                written.setdefault(point.attempt, []).append((point.step, point.epoch))
        for line in read_lines(connection, stored.unreduced()):
            places.append(LinePlace(line.attempt, line.step, line.at))
            if request.axis == EPOCH and (epoch := epoch_of(line)) is not None:
                written.setdefault(line.attempt, []).append((float(line.step), epoch))
        epochs = Epochs(written)
        paces = Paces()
        for place in places:
            paces.add(*place)
        axis = cls(AxisMap(request.axis, timeline, epochs.pairs, paces.pairs, cuts), epochs, paces)
        for place in places:
            axis.widen_to(place)
        return axis

    def keeps_places(self, axis: Axis, timeline: AxisTimeline, cuts: Mapping[int, float]) -> bool:
        """Return whether all lines would lie where they are."""
        return axis == self.map.axis and cuts == self.map.cuts and timeline.keeps_places_of(self.map.timeline)

    def follow(self, timeline: AxisTimeline) -> None:
        """Take over a newer timeline that keeps all places."""
        self.map = replace(self.map, timeline=timeline)

    def pace(self, attempt: int) -> Pairs:
        """(moment, step) pairs of an attempt in the order of time."""
        return self._paces.pairs.get(attempt, ())

    def learn(self, line: CurveLine) -> bool:
        """Learn from a new line where the run was when. False if it moves earlier lines."""
        self._paces.add(line.attempt, line.step, line.at)
        return self.map.axis != EPOCH or self._epochs.add(line)

    def widen_to(self, place: LinePlace) -> float | None:
        """The x of a line, which belongs to the axis from now on; None if it has none."""
        x = self.map.place(place.attempt, place.step, place.at)
        if x is not None:
            self.start = min(self.start, x)
            self.end = max(self.end, x)
        return x

    def level_on_log(self, request: ChartRequest) -> Callable[[Stretch], int | None]:
        """A function for the level at which each stretch is read for a logarithmic axis: the further along the axis,
        the more lines one bin holds. None is line by line."""
        start, end = request.window or (self.start, self.end)
        start = max(start, NARROWEST_BIN[request.axis])
        # Each bin ends this share of its x further on than it starts.
        share = 0.0
        if end > start:
            share = (end / start) ** (1 / max(1, request.bins)) - 1

        def level_of(stretch: Stretch) -> int | None:
            span = span_of(stretch, self.map)
            if span is None:
                return None
            first_x, last_x = span
            if not last_x > first_x:
                return None
            bin_width = max(0.0, first_x) * share
            lines_in_bin = stretch.line_count * bin_width / (last_x - first_x)
            if lines_in_bin < envelopes.BLOCK_LINES:
                return None
            return envelopes.level_for(int(lines_in_bin), 1)

        return level_of


def _ends_of(stretch: Stretch) -> Iterator[LinePlace]:
    yield LinePlace(stretch.attempt, stretch.min_step, stretch.min_at)
    yield LinePlace(stretch.attempt, stretch.max_step, stretch.max_at)
