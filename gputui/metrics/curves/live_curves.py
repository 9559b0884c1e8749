"""The curves of one run, and of each of its ranks, followed as it grows."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap, AxisTimeline, Pairs, in_window
from gputui.metrics.curves.bins import CurveBuilder
from gputui.metrics.curves.hardware import HardwareCurves
from gputui.metrics.curves.lines import (
    EPOCH,
    CurveLine,
    RunEnds,
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
from gputui.metrics.curves.run_axis import LinePlace, RunAxis
from gputui.store.attempts import Attempt, cuts_of, read_attempts
from gputui.store.metrics import envelopes, queries

LINES_IN_FULL = 4096
"""A window with at most this many lines is read line by line: about 10 ms."""

LINES_AT_ONCE = 8192
"""With more new lines than these, starting over is quicker than following."""


class ReportedMetrics(NamedTuple):
    """What a run has reported so far.

    Attributes:
        newest: the newest value of each metric, by its stored name.
        names: the names of all metrics as harmless text, in the order of their first appearance.
        rank_names: those of the ``names`` that several ranks report.
    """

    newest: Mapping[str, float] = {}
    names: tuple[str, ...] = ()
    rank_names: frozenset[str] = frozenset()

    @classmethod
    def read(cls, connection: sqlite3.Connection, run_id: str) -> ReportedMetrics:
        """Read them. Raises sqlite3.Error."""
        reporting = queries.ranks_by_metric(connection, run_id)
        return cls(
            queries.latest(connection, run_id),
            tuple(clean(name) for name in queries.metric_names(connection, run_id)),
            frozenset(clean(name) for name, ranks in reporting.items() if len(ranks) > 1),
        )

    def stored_name(self, requested: str) -> str:
        """The stored name of a metric that is requested by its name or by its harmless text."""
        if requested in self.newest:
            return requested
        return next((name for name in self.newest if clean(name) == requested), requested)


class RunCurves:
    """The curves of one run; each request reads only new lines. One per reader; not thread-safe.

    Attributes:
        _axis: the axis, with all lines up to ``_read_to``.
        _read_to: how far the lines are in the axis and in the curves.
        _stored: the extent of the stored lines when a curve was last read from the beginning; None before that.
        _followed: the curve of each metric and window that is open.
        _drawn_as: the number of bins and the scale of the followed curves.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._metrics = ReportedMetrics()
        self._axis = RunAxis.empty()
        self._read_to = RunEnds({}, 0)
        self._stored: StoredLines | None = None
        self._followed: dict[tuple[str, Window | None], CurveBuilder] = {}
        self._drawn_as: tuple[int, bool] | None = None
        self._events: list[ChartMarker] = []
        self._hardware = HardwareCurves()
        self._ranks = RankReader(run_id)

    def has_news(self, connection: sqlite3.Connection) -> bool:
        """Return whether there are new lines since the last read. Raises sqlite3.Error."""
        return read_ends(connection, self.run_id).positions != self._read_to.positions

    def pace(self, attempt: int) -> Pairs:
        """(moment, step) pairs of an attempt in the order of time, as far as was read."""
        return self._axis.pace(attempt)

    def read(self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest) -> ChartData:
        """The answer to ``request``. The connection must be in a read transaction. Raises
        sqlite3.Error."""
        curves = self.curves(connection, attempts, request)
        axis_map = self._axis.map
        hardware: tuple[HardwareCurve, ...] = ()
        if request.hardware:
            hardware = self._hardware.read(connection, attempts, axis_map, request)
        ranked: Mapping[str, RankCurves] = {}
        if request.ranked:
            stored_names = {requested: self._metrics.stored_name(requested) for requested in request.ranked}
            ranked = self._ranks.read(connection, stored_names, axis_map, request)
        return ChartData(
            request,
            self._frame(hardware),
            self._metrics.names,
            curves=curves,
            hardware=hardware,
            markers=markers(connection, self.run_id, attempts, self._events, axis_map),
            rank_names=self._metrics.rank_names,
            ranked=ranked,
        )

    def _frame(self, hardware: Sequence[HardwareCurve]) -> Frame:
        axis_map = self._axis.map
        moments: tuple[tuple[float, float], ...] = ()
        if axis_map.axis != "time":
            moments = axis_map.moments()
        epochs = {attempt: tuple(pairs) for attempt, pairs in axis_map.epochs.items()}
        frame = Frame(axis_map.axis, origin_at=axis_map.timeline.origin_at, moments=moments, epochs=epochs)
        start, end = self._reach(hardware)
        if start <= end:
            return dataclasses.replace(frame, start=start, end=end)
        return frame

    def _reach(self, hardware: Sequence[HardwareCurve]) -> Window:
        """Both ends of the axis. Over time, a run starts before its first line and ends after its
        last one."""
        axis_map = self._axis.map
        if axis_map.axis not in ("time", "trained"):
            return self._axis.start, self._axis.end
        timeline = axis_map.timeline
        moments = [(number, at) for ends in (timeline.begins, timeline.ends) for number, at in ends.items()]
        places = [x for number, at in moments if (x := axis_map.place_moment(at, number)) is not None]
        places += [curve.bins[-1].last_x for curve in hardware if curve.bins]
        return min([self._axis.start, *places]), max([self._axis.end, *places])

    def curves(
        self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest
    ) -> dict[str, MetricCurve]:
        """The metrics alone, by requested name. Raises sqlite3.Error."""
        self._update(connection, attempts, request)
        stored_names = {requested: self._metrics.stored_name(requested) for requested in request.names}
        self._open_curves(connection, list(dict.fromkeys(stored_names.values())), request)
        curves = {}
        for requested, name in stored_names.items():
            whole = None
            if request.window is not None:
                whole = self._followed.get((name, None))
            builder = self._followed[name, request.window]
            curves[requested] = builder.curve(request.smoothing, self._metrics.newest.get(name), whole)
        return curves

    def _open_curves(self, connection: sqlite3.Connection, names: Sequence[str], request: ChartRequest) -> None:
        """Follow the curves of these metrics and no others: in the window, and of the whole run for an average."""
        windows = {request.window}
        if request.smoothing > 0:
            windows.add(None)
        open_keys = {(name, window) for window in windows for name in names}
        self._followed = {key: builder for key, builder in self._followed.items() if key in open_keys}
        for window in windows:
            new = [name for name in names if (name, window) not in self._followed]
            if not new:
                continue
            if self._stored is None or self._stored.ends != self._read_to.positions:
                self._stored = read_stored_lines(connection, self.run_id)
            builders = read_curves(connection, new, replace(request, window=window), self._stored, self._axis)
            self._followed |= {(builder.name, window): builder for builder in builders}

    # --- new lines

    def _update(self, connection: sqlite3.Connection, attempts: Sequence[Attempt], request: ChartRequest) -> None:
        """Read new lines; or start over if known lines have moved on the axis, or if that is
        quicker."""
        ends = read_ends(connection, self.run_id)
        if ends.positions != self._read_to.positions:
            self._metrics = ReportedMetrics.read(connection, self.run_id)
        drawn_as = (request.bins, request.is_log)
        if drawn_as != self._drawn_as:
            self._drawn_as = drawn_as
            self._followed.clear()
        timeline = AxisTimeline.of(attempts)
        cuts: Mapping[int, float] = {}
        if request.axis in ("step", EPOCH):
            cuts = cuts_of(attempts)
        can_follow = self._stored is not None and self._axis.keeps_places(request.axis, timeline, cuts)
        if can_follow and self._follow(connection, ends):
            self._axis.follow(timeline)
        else:
            self._start_over(connection, request, timeline, cuts)

    def _follow(self, connection: sqlite3.Connection, ends: RunEnds) -> bool:
        """Add the lines up to ``ends`` to the axis and to all curves. False if they change the axis, or are too
        many."""
        is_same_sources = ends.positions.keys() == self._read_to.positions.keys()
        if not is_same_sources or ends.line_count - self._read_to.line_count > LINES_AT_ONCE:
            return False
        ranges = ranges_between(self._read_to.positions, ends.positions)
        if ranges:
            self._read_to = ends
        followed = list(self._followed.values())
        for line in read_lines(connection, ranges):
            if not self._axis.learn(line):
                return False
            if "event" in line.values and (event := event_marker(line, self._axis.map)) is not None:
                self._events = [*self._events[1 - EVENTS_KEPT :], event]
            x = self._axis.widen_to(LinePlace(line.attempt, line.step, line.at))
            for builder in followed:
                builder.add_line(line, x)
        return True

    def _start_over(
        self, connection: sqlite3.Connection, request: ChartRequest, timeline: AxisTimeline, cuts: Mapping[int, float]
    ) -> None:
        self._followed.clear()
        self._hardware.reset()
        self._ranks.reset()
        stored = self._stored = read_stored_lines(connection, self.run_id)
        self._read_to = RunEnds(stored.ends, stored.line_count)
        self._axis = RunAxis.read(connection, stored, request, timeline, cuts)
        placed = (event_marker(line, self._axis.map) for line in event_lines(connection, self.run_id))
        self._events = [event for event in placed if event is not None]


def read_curves(
    connection: sqlite3.Connection, names: Sequence[str], request: ChartRequest, stored: StoredLines, axis: RunAxis
) -> list[CurveBuilder]:
    """Read the curves of some metrics from the beginning. Raises sqlite3.Error."""
    builders = [CurveBuilder(name, request, axis.map.cuts) for name in names]
    parts = split_in_parts(in_window(stored.stretches, axis.map, request.window), axis.map.cuts)
    line_count = sum(part.line_count for part in parts)
    # Half as many entries suffice: each has four values to draw, and the level below takes
    # sixteen times as long.
    level = envelopes.level_for(line_count, max(1, request.bins // 2))
    level_of = axis.level_on_log(request) if request.is_log else lambda _: level
    for part, part_level in split_by_level(parts, level_of):
        if line_count <= LINES_IN_FULL or part_level is None or part.redone == "some":
            _add_lines(builders, read_lines(connection, [part.line_range]), axis.map)
            continue
        for builder in builders:
            entries = part.entries(connection, builder.name, part_level)
            builder.add_entries(part.attempt, entries, axis.map, is_redone=part.redone == "all")
    _add_lines(builders, read_lines(connection, stored.unreduced()), axis.map)
    return builders


def _add_lines(builders: Sequence[CurveBuilder], lines: Iterable[CurveLine], axis_map: AxisMap) -> None:
    for line in lines:
        x = axis_map.place(line.attempt, line.step, line.at)
        for builder in builders:
            builder.add_line(line, x)


def read_charts(connection: sqlite3.Connection, run_id: str, request: ChartRequest) -> ChartData:
    """The answer to a single request. The connection must be in no transaction. Raises
    sqlite3.Error."""
    connection.execute("BEGIN")
    try:
        return RunCurves(run_id).read(connection, read_attempts(connection, run_id), request)
    finally:
        connection.execute("ROLLBACK")


class WholeCurves(NamedTuple):
    """The curves of a run as they were read for past moments, up to ``read_at`` (UTC unix seconds)."""

    request: ChartRequest
    read_at: float
    data: ChartData


class CurveReader:
    """Answers chart requests; the curves of a run are kept while its charts are open."""

    def __init__(self) -> None:
        self._runs: dict[str, RunCurves] = {}
        self._whole: dict[str, WholeCurves] = {}

    def read(
        self, connection: sqlite3.Connection, run_id: str, request: ChartRequest, now: float, at: float | None = None
    ) -> ChartData:
        """The charts of one run, now or at a past moment (UTC unix seconds). Whole curves are read once and cut
        for all past moments. Raises sqlite3.Error."""
        if at is None:
            return self._read_now(connection, run_id, request)
        whole = self._whole.get(run_id)
        if whole is None or whole.request != request or at > whole.read_at:
            whole = WholeCurves(request, now, self._read_now(connection, run_id, request))
            self._whole[run_id] = whole
        from gputui.metrics.curves.past import RunExtent, cut  # most screens never show the past

        return cut(whole.data, RunExtent.of(connection, run_id, at))

    def _read_now(self, connection: sqlite3.Connection, run_id: str, request: ChartRequest) -> ChartData:
        curves = self._runs.setdefault(run_id, RunCurves(run_id))
        return curves.read(connection, read_attempts(connection, run_id), request)

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget all runs but these."""
        for readers in (self._runs, self._whole):
            for run_id in [run_id for run_id in readers if run_id not in run_ids]:
                del readers[run_id]
