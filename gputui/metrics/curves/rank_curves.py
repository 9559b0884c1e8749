"""One metric of every rank of a run, followed as it grows or as at a past moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import orjson

from gputui.metrics.curves import lines as run_lines
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.bins import CurveBuilder
from gputui.metrics.curves.lines import CurveLine, Layout
from gputui.metrics.curves.model import ChartRequest, RankCurve, RankCurves
from gputui.store.metrics import queries
from gputui.store.metrics.queries import FilePosition

RANK_LINES_AT_ONCE = 24_000
"""Most lines of ranks read when a chart is opened, about 100 ms; of a longer run, a sample is read.
"""

_Place = tuple[int, FilePosition, FilePosition]


class RankReader:
    """Reads the curves of a run's ranks from lines, since only those of rank 0 are reduced, and
    follows them."""

    def __init__(self, run_id: str, at: float | None) -> None:
        self._run_id = run_id
        self._at = at
        self._asked: tuple[object, ...] | None = None
        self._until: dict[int, FilePosition] = {}
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
        asked = (tuple(names.items()), request.axis, request.window, request.bins, request.is_log)
        until, limit = run_lines.sources(connection, self._run_id, self._at)[0], -1
        if asked != self._asked or until.keys() != self._until.keys():
            self._followed = {}
            found = run_lines.layout(connection, self._run_id, self._at)
            places, limit = self._places(found, axis_map, request)
        else:
            places = run_lines.between(self._until, until)
        # Incomplete until all lines were taken: a failed read starts over.
        self._asked = None
        for number, (source_id, begin, end) in enumerate(places):
            most = -1 if number >= len(places) - len(until) else limit
            where = "AND rank IS NOT NULL AND step IS NOT NULL"
            rows = queries.rows_between(connection, source_id, begin, end, where=where, limit=most)
            for attempt, rank, step, at, data in rows:
                x = axis_map.place(attempt, step, at)
                if x is None:
                    continue
                line = CurveLine(attempt, step, at, orjson.loads(data))
                for name in names.values():
                    followed = self._followed.get((name, rank))
                    if followed is None:
                        followed = self._followed[name, rank] = CurveBuilder(name, request, axis_map.cuts)
                    followed.add_line(line, x)
        self._asked, self._until = asked, until
        return {each: self._curves(name, request) for each, name in names.items()}

    def _places(self, found: Layout, axis_map: AxisMap, request: ChartRequest) -> tuple[list[_Place], int]:
        """The lines to read, those after the last stretches at the end, and the most of each stretch."""
        parts = run_lines.parts(found.stretches, axis_map, request.window)
        stretches = [stretch for part in parts if part.share != "redone" for stretch in part.stretches]
        of_rank_0 = sum(stretch.line_count for stretch in found.stretches)
        ranks = max(1, round(found.line_count / of_rank_0)) if of_rank_0 else 1
        wanted = sum(stretch.line_count for stretch in stretches) * ranks
        self._is_sampled = wanted > RANK_LINES_AT_ONCE
        limit = -1
        if self._is_sampled:
            # From each stretch enough lines for two of every rank.
            stretches = stretches[:: -(-len(stretches) // max(1, request.bins))]
            limit = max(2 * ranks, RANK_LINES_AT_ONCE // len(stretches))
        return [*((one.source_id, one.begin, one.end) for one in stretches), *found.unreduced()], limit

    def _curves(self, name: str, request: ChartRequest) -> RankCurves:
        curves = []
        for (of, rank), followed in sorted(self._followed.items()):
            if of == name and followed.last is not None:
                curve = followed.curve(request, followed.last)
                curves.append(RankCurve(rank, curve.smooth or curve.bins, followed.last))
        return RankCurves(tuple(curves), self._is_sampled)
