"""The curves of one run, and of each of its ranks, followed as it grows."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap, AxisTimeline, Paces, Pairs, in_window, span_of
from gputui.metrics.curves.bins import NARROWEST_BIN, CurveBuilder
from gputui.metrics.curves.epochs import Epochs, epoch_of, epoch_points
from gputui.metrics.curves.hardware import HardwareCurves
from gputui.metrics.curves.lines import (
    EPOCH,
    CurveLine,
    StoredLines,
    ranges_between,
    read_ends,
    read_lines,
    read_stored_lines,
    split_by_level,
    split_in_parts,
)
from gputui.metrics.curves.markers import EVENTS_KEPT, event_lines, event_marker, markers
from gputui.metrics.curves.model import (
    ChartData,
    ChartMarker,
    ChartRequest,
    Frame,
    HardwareCurve,
    MetricCurve,
    RankCurves,
    Window,
)
from gputui.metrics.curves.rank_curves import RankReader
from gputui.store.attempts import Attempt, cuts_of, read_attempts
from gputui.store.metrics import envelopes, queries
from gputui.store.metrics.envelopes import Stretch
from gputui.store.metrics.stored_lines import FilePosition

LINES_IN_FULL = 4096
"""A window with at most this many lines is read line by line: about 10 ms."""

LINES_AT_ONCE = 8192
"""With more new lines than these, starting over is quicker than following."""


class RunCurves:
    """The curves of one run; each request reads only new lines. One per reader; not thread-safe."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._shown: tuple[int, bool] | None = None
        self._stored: StoredLines | None = None
        self._map = AxisMap("step", AxisTimeline(None))
        self._epochs = Epochs()
        self._paces = Paces()
        self._hardware = HardwareCurves()
        self._events: list[ChartMarker] = []
        # By name and window.
        self._followed: dict[tuple[str, Window | None], CurveBuilder] = {}
        self._newest: Mapping[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._rank_names: frozenset[str] = frozenset()
        self._ranks = RankReader(run_id)
        self._until: dict[int, FilePosition] = {}
        self._line_count = 0
        self._start = math.inf
        self._end = -math.inf

    def has_news(self, connection: sqlite3.Connection) -> bool:
        """Return whether there are new lines since the last read. Raises sqlite3.Error."""
        return read_ends(connection, self.run_id)[0] != self._until

    def pace(self, attempt: int) -> Pairs:
        """(moment, step) pairs of an attempt in the order of time, as far as was read."""
        return self._paces.pairs.get(attempt, ())

    def read(self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest) -> ChartData:
        """The answer to ``request``. The connection must be in a read transaction. Raises
        sqlite3.Error."""
        curves = self.curves(connection, attempts, request)
        hardware: tuple[HardwareCurve, ...] = ()
        if request.hardware:
            hardware = self._hardware.read(connection, attempts, self._map, request)
        moments: tuple[tuple[float, float], ...] = ()
        if request.axis != "time":
            moments = self._map.moments()
        epochs = {attempt: tuple(pairs) for attempt, pairs in self._map.epochs.items()}
        frame = Frame(
            request.axis, start=None, end=None, origin_at=self._map.timeline.origin_at, moments=moments, epochs=epochs
        )
        start, end = self._reach(hardware)
        if start <= end:
            frame = dataclasses.replace(frame, start=start, end=end)
        happened = markers(connection, self.run_id, attempts, self._events, self._map)
        ranked: Mapping[str, RankCurves] = {}
        if request.ranked:
            written = {requested: self._written_as(requested) for requested in request.ranked}
            ranked = self._ranks.read(connection, written, self._map, request)
        return ChartData(
            request,
            frame,
            self._names,
            curves=curves,
            hardware=hardware,
            markers=happened,
            rank_names=self._rank_names,
            ranked=ranked,
        )

    def _reach(self, hardware: Sequence[HardwareCurve]) -> Window:
        """Both ends of the axis. Over time, a run starts before its first line and ends after its
        last one."""
        if self._map.axis not in ("time", "trained"):
            return self._start, self._end
        timeline = self._map.timeline
        moments = [(number, at) for ends in (timeline.begins, timeline.ends) for number, at in ends.items()]
        places = [x for number, at in moments if (x := self._map.place_moment(at, number)) is not None]
        places += [curve.bins[-1].last_x for curve in hardware if curve.bins]
        return min([self._start, *places]), max([self._end, *places])

    def curves(
        self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest
    ) -> dict[str, MetricCurve]:
        """The metrics alone, by requested name. Raises sqlite3.Error."""
        self._update(connection, attempts, request)
        stored_names = {requested: self._written_as(requested) for requested in request.names}
        windows = {request.window}
        if request.smoothing > 0:
            windows.add(None)
        self._followed = {
            (name, window): builder
            for (name, window), builder in self._followed.items()
            if name in stored_names.values() and window in windows
        }
        for window in windows:
            new = [name for name in dict.fromkeys(stored_names.values()) if (name, window) not in self._followed]
            if not new:
                continue
            if self._stored is None or self._stored.ends != self._until:
                self._stored = read_stored_lines(connection, self.run_id)
            self._read_curves(connection, new, replace(request, window=window), self._stored)
        curves = {}
        for requested, name in stored_names.items():
            whole = None
            if request.window is not None:
                whole = self._followed.get((name, None))
            builder = self._followed[name, request.window]
            curves[requested] = builder.curve(request.smoothing, self._newest.get(name), whole)
        return curves

    def _written_as(self, requested: str) -> str:
        """The stored name of a metric that is requested by its name or by its harmless text."""
        if requested in self._newest:
            return requested
        return next((name for name in self._newest if clean(name) == requested), requested)

    # --- new lines

    def _update(self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest) -> None:
        """Read new lines; or start over if known lines have moved on the axis, or if that is
        quicker."""
        timeline = AxisTimeline.of(attempts)
        cuts: Mapping[int, float] = {}
        if request.axis in ("step", EPOCH):
            cuts = cuts_of(attempts)
        ends, line_count = read_ends(connection, self.run_id)
        if ends != self._until:
            self._newest = queries.latest(connection, self.run_id)
            self._names = tuple(clean(name) for name in queries.metric_names(connection, self.run_id))
            reporting = queries.ranks_by_metric(connection, self.run_id)
            self._rank_names = frozenset(clean(name) for name, ranks in reporting.items() if len(ranks) > 1)
        is_same = (
            self._stored is not None
            and request.axis == self._map.axis
            and cuts == self._map.cuts
            and timeline.keeps_places_of(self._map.timeline)
            and ends.keys() == self._until.keys()
            and line_count - self._line_count <= LINES_AT_ONCE
        )
        drawn_as = (request.bins, request.is_log)
        if drawn_as != self._shown:
            self._shown = drawn_as
            self._followed.clear()
        if is_same and ends != self._until:
            ranges = ranges_between(self._until, ends)
            self._until = ends
            self._line_count = line_count
            is_same = self._follow(read_lines(connection, ranges))
        if is_same:
            self._map = replace(self._map, timeline=timeline)
        else:
            self._read_all(connection, request, timeline, cuts)

    def _follow(self, lines: Iterable[CurveLine]) -> bool:
        """Add lines to all curves; False if they change the axis."""
        is_epoch = self._map.axis == EPOCH
        followed = list(self._followed.values())
        for line in lines:
            self._paces.add(line.attempt, line.step, line.at)
            if is_epoch and not self._epochs.add(line):
                return False
            if "event" in line.values and (event := event_marker(line, self._map)) is not None:
                self._events = [*self._events[1 - EVENTS_KEPT :], event]
            x = self._place(line.attempt, line.step, line.at)
            for builder in followed:
                builder.add_line(line, x)
        return True

    def _place(self, attempt: int, step: int, at: float | None) -> float | None:
        x = self._map.place(attempt, step, at)
        if x is not None:
            self._start, self._end = min(self._start, x), max(self._end, x)
        return x

    # --- from the beginning

    def _read_all(
        self, connection: sqlite3.Connection, request: ChartRequest, timeline: AxisTimeline, cuts: Mapping[int, float]
    ) -> None:
        self._followed.clear()
        self._paces = Paces()
        self._start = math.inf
        self._end = -math.inf
        self._hardware.reset()
        self._ranks.reset()
        stored = self._stored = read_stored_lines(connection, self.run_id)
        self._until = dict(stored.ends)
        self._line_count = stored.line_count
        ends: list[tuple[int, int, float | None]] = []
        for stretch in stored.stretches:
            ends += [
                (stretch.attempt, stretch.min_step, stretch.min_at),
                (stretch.attempt, stretch.max_step, stretch.max_at),
            ]
            if stretch.min_at is not None and stretch.max_at is not None:
                for end in ends[-2:]:
                    self._paces.add(*end)
        is_epoch = request.axis == EPOCH
        written: dict[int, list[tuple[float, float]]] = {}
        if is_epoch:
            for attempt, step, epoch in epoch_points(connection, stored.stretches, request.bins):
                written.setdefault(attempt, []).append((step, epoch))
        for line in read_lines(connection, stored.unreduced()):
            self._paces.add(line.attempt, line.step, line.at)
            if is_epoch and (line_epoch := epoch_of(line)) is not None:
                written.setdefault(line.attempt, []).append((float(line.step), line_epoch))
            ends.append((line.attempt, line.step, line.at))
        self._epochs = Epochs(written)
        self._map = AxisMap(request.axis, timeline, self._epochs.pairs, self._paces.pairs, cuts)
        for end in ends:
            self._place(*end)
        placed = (event_marker(line, self._map) for line in event_lines(connection, self.run_id))
        self._events = [event for event in placed if event is not None]

    def _read_curves(
        self, connection: sqlite3.Connection, names: Sequence[str], request: ChartRequest, stored: StoredLines
    ) -> None:
        """Read new metrics up to where the others are."""
        stretches = in_window(stored.stretches, self._map, request.window)
        parts = split_in_parts(stretches, self._map.cuts)
        reduced = sum(part.line_count for part in parts)
        # Half as many entries suffice: each has four values to draw, and the level below takes
        # sixteen times as long.
        level = envelopes.level_for(reduced, max(1, request.bins // 2))
        in_full = reduced <= LINES_IN_FULL
        new = [CurveBuilder(name, request, self._map.cuts) for name in names]
        self._followed |= {(builder.name, request.window): builder for builder in new}
        level_of = self._log_level_of(request) if request.is_log else lambda _: level
        for part, at in split_by_level(parts, level_of):
            if in_full or at is None or part.redone == "some":
                self._read_lines(read_lines(connection, [part.line_range]), new)
            else:
                for builder in new:
                    entries = part.entries(connection, builder.name, at)
                    builder.add_entries(part.attempt, entries, self._map, is_redone=part.redone == "all")
        self._read_lines(read_lines(connection, stored.unreduced()), new)

    def _log_level_of(self, request: ChartRequest) -> Callable[[Stretch], int | None]:
        """The level of each stretch for a logarithmic axis: the further along the axis, the more
        lines one bin holds. None is line by line."""
        start, end = request.window or (self._start, self._end)
        start = max(start, NARROWEST_BIN[request.axis])
        share = 0.0
        if end > start:
            share = (end / start) ** (1 / max(1, request.bins)) - 1

        def level_of(stretch: Stretch) -> int | None:
            span = span_of(stretch, self._map)
            if span is None or not span[1] > span[0]:
                return None
            lines = max(0.0, span[0]) * share * stretch.line_count / (span[1] - span[0])
            if lines < envelopes.BLOCK_LINES:
                return None
            return envelopes.level_for(int(lines), 1)

        return level_of

    def _read_lines(self, lines: Iterable[CurveLine], followed: Sequence[CurveBuilder]) -> None:
        place = self._map.place
        for line in lines:
            x = place(line.attempt, line.step, line.at)
            for builder in followed:
                builder.add_line(line, x)


def read_charts(connection: sqlite3.Connection, run_id: str, request: ChartRequest) -> ChartData:
    """The answer to a single request. The connection must be in no transaction. Raises
    sqlite3.Error."""
    connection.execute("BEGIN")
    try:
        return RunCurves(run_id).read(connection, read_attempts(connection, run_id), request)
    finally:
        connection.execute("ROLLBACK")


class CurveReader:
    """Answers chart requests; the curves of a run are kept while its charts are open."""

    def __init__(self) -> None:
        self._runs: dict[str, RunCurves] = {}
        self._whole: dict[str, tuple[ChartRequest, float, ChartData]] = {}

    def read(
        self, connection: sqlite3.Connection, run_id: str, request: ChartRequest, now: float, at: float | None = None
    ) -> ChartData:
        """The charts of one run, now or at a past moment (UTC unix seconds). Whole curves are read once and cut
        for all past moments. Raises sqlite3.Error."""
        cached = self._whole.get(run_id)
        if at is None or cached is None or cached[0] != request or at > cached[1]:
            curves = self._runs.setdefault(run_id, RunCurves(run_id))
            data = curves.read(connection, read_attempts(connection, run_id), request)
            if at is None:
                return data
            cached = self._whole[run_id] = (request, now, data)
        from gputui.metrics.curves.past import RunExtent, cut  # most screens never show the past

        return cut(cached[2], RunExtent.of(connection, run_id, at))

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget all runs but these."""
        for readers in (self._runs, self._whole):
            for run_id in [run_id for run_id in readers if run_id not in run_ids]:
                del readers[run_id]
