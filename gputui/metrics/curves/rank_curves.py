"""The curves of each rank of a run."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import orjson

from gputui.metrics.curves.axis import AxisMap, in_window
from gputui.metrics.curves.bins import CurveBuilder
from gputui.metrics.curves.lines import (
    CurveLine,
    LineRange,
    StoredLines,
    ranges_between,
    read_ends,
    read_stored_lines,
    split_in_parts,
)
from gputui.metrics.curves.model import ChartRequest, RankCurve, RankCurves
from gputui.store.metrics.stored_lines import FilePosition, LineQuery, rows_between

RANK_LINES_AT_ONCE = 24_000
"""Most lines of ranks read when a chart is opened, about 100 ms; of a longer run, a sample is read.
"""

RANK_LINES = LineQuery(where="rank IS NOT NULL AND step IS NOT NULL")


class RankReader:
    """Reads the curves of a run's ranks from lines, since only those of rank 0 are reduced, and
    follows them."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._asked: tuple[object, ...] | None = None
        self._until: Mapping[int, FilePosition] = {}
        self._followed: dict[tuple[str, int], CurveBuilder] = {}
        self._is_sampled = False

    def reset(self) -> None:
        """Read everything again next time: places on the axis have changed."""
        self._asked = None

    def read(
        self,
        connection: sqlite3.Connection,
        names: Mapping[str, str],
        axis_map: AxisMap,
        request: ChartRequest,
    ) -> Mapping[str, RankCurves]:
        """The curves of all ranks for each metric. ``names`` maps requested names to those in the
        store. Steps that a later attempt did again are left out. Raises sqlite3.Error."""
        settings = (tuple(names.items()), request.axis, request.window, request.bins, request.is_log)
        ends = read_ends(connection, self._run_id).positions
        if settings == self._asked and ends.keys() == self._until.keys():
            reads = [(line_range, RANK_LINES) for line_range in ranges_between(self._until, ends)]
        else:
            self._followed = {}
            stored = read_stored_lines(connection, self._run_id)
            reads = self._reads(stored, axis_map, request)
        # Incomplete until all lines were taken: a failed read starts over.
        self._asked = None
        for (source_id, begin, end), query in reads:
            for attempt, rank, step, at, data in rows_between(connection, source_id, begin, end, query):
                x = axis_map.place(attempt, step, at)
                if x is None:
                    continue
                line = CurveLine(attempt, step, at, orjson.loads(data))
                for name in names.values():
                    followed = self._followed.get((name, rank))
                    if followed is None:
                        followed = self._followed[name, rank] = CurveBuilder(name, request, axis_map.cuts)
                    followed.add_line(line, x)
        self._asked = settings
        self._until = ends
        return {requested: self._curves(name, request) for requested, name in names.items()}

    def _reads(
        self, stored: StoredLines, axis_map: AxisMap, request: ChartRequest
    ) -> list[tuple[LineRange, LineQuery]]:
        """The lines to read: of a long run the first ones of some of its stretches, and all that are newer."""
        parts = split_in_parts(in_window(stored.stretches, axis_map, request.window), axis_map.cuts)
        stretches = [stretch for part in parts if part.redone != "all" for stretch in part.stretches]
        rank_count = _rank_count(stored)
        line_count = sum(stretch.line_count for stretch in stretches) * rank_count
        self._is_sampled = line_count > RANK_LINES_AT_ONCE
        query = RANK_LINES
        if self._is_sampled:
            stretches = stretches[:: -(-len(stretches) // max(1, request.bins))]
            # Enough for two lines of every rank.
            most = max(2 * rank_count, RANK_LINES_AT_ONCE // len(stretches))
            query = RANK_LINES._replace(limit=most)
        ranges = (LineRange(stretch.source_id, stretch.begin, stretch.end) for stretch in stretches)
        return [
            *((line_range, query) for line_range in ranges),
            *((line_range, RANK_LINES) for line_range in stored.unreduced()),
        ]

    def _curves(self, name: str, request: ChartRequest) -> RankCurves:
        curves = []
        for (of, rank), followed in sorted(self._followed.items()):
            if of == name and followed.last_in_window is not None:
                curve = followed.curve(request.smoothing, followed.last_in_window)
                curves.append(RankCurve(rank, curve.smooth or curve.bins, curve.last))
        return RankCurves(tuple(curves), self._is_sampled)


def _rank_count(stored: StoredLines) -> int:
    """The ranks that write lines, by the share of those of rank 0."""
    of_rank_0 = sum(stretch.line_count for stretch in stored.stretches)
    if of_rank_0 == 0:
        return 1
    return max(1, round(stored.line_count / of_rank_0))
