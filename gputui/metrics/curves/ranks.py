"""Curves of one metric for each rank, read from lines: only those of rank 0 are reduced."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import orjson

from gputui.metrics.curves import run_lines
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.bins import new_buckets
from gputui.metrics.curves.model import ChartRequest, RankCurve, RankCurves, is_set
from gputui.metrics.curves.smooth import smooth_bins
from gputui.metrics.draw.envelope import Bin, Buckets
from gputui.store.metrics.queries import FilePosition, as_float

LINES_AT_ONCE = 24_000
"""Most lines read when a chart is opened, about 100 ms; of a longer run, a sample is read."""

_LINES = (
    "SELECT rank, attempt, step, at, data FROM metrics WHERE source_id = ? AND (generation, byte_offset) >= (?, ?) "
    "AND (generation, byte_offset) < (?, ?) AND rank IS NOT NULL AND step IS NOT NULL "
    "ORDER BY generation, byte_offset LIMIT ?"
)

RankLine = tuple[int, int, int, float | None, str]
"""Rank, attempt, step, moment in UTC unix seconds, and the line as it is stored."""


class RankReader:
    """Reads the curves of a run's ranks, and follows them as the run grows."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._asked: tuple[object, ...] | None = None
        self._until: dict[int, FilePosition] = {}
        self._buckets: dict[str, dict[int, Buckets]] = {}
        self._attempts: dict[tuple[str, int], int] = {}
        self._is_sampled = False
        self._answer: tuple[ChartRequest, Mapping[str, RankCurves]] | None = None

    def reset(self) -> None:
        """Read everything again next time: places on the axis have changed."""
        self._asked = None

    def read(
        self,
        connection: sqlite3.Connection,
        names: Mapping[str, str],
        axis_map: AxisMap,
        cuts: Mapping[int, float],
        request: ChartRequest,
    ) -> Mapping[str, RankCurves]:
        """The curves of all ranks for each metric. ``names`` maps requested names to those in the store. Steps that a
        later attempt did again are left out. Raises sqlite3.Error."""
        asked = (tuple(names.items()), request.axis, request.window, request.bins, request.is_log)
        until, _ = run_lines.sources(connection, self._run_id)
        if asked != self._asked or until.keys() != self._until.keys():
            self._buckets = {name: {} for name in names.values()}
            self._attempts = {}
            lines = self._from_the_beginning(connection, axis_map, cuts, request)
        elif until != self._until:
            lines = _between(connection, self._until, until)
        elif self._answer is not None and self._answer[0] == request:
            return self._answer[1]
        else:
            lines = iter(())
        # Incomplete until all lines were taken: a failed read starts over.
        self._asked, self._answer = None, None
        for line in lines:
            self._take(line, axis_map, cuts, request)
        self._asked, self._until = asked, until
        curves = {each: self._curves(name, request) for each, name in names.items()}
        self._answer = (request, curves)
        return curves

    def _from_the_beginning(
        self, connection: sqlite3.Connection, axis_map: AxisMap, cuts: Mapping[int, float], request: ChartRequest
    ) -> Iterator[RankLine]:
        found = run_lines.layout(connection, self._run_id)
        parts = run_lines.parts(found.stretches, axis_map, request.window, cuts)
        stretches = [stretch for part in parts if part.share != "redone" for stretch in part.stretches]
        of_rank_0 = sum(stretch.line_count for stretch in found.stretches)
        ranks = max(1, round(found.line_count / of_rank_0)) if of_rank_0 else 1
        wanted = sum(stretch.line_count for stretch in stretches) * ranks
        self._is_sampled = wanted > LINES_AT_ONCE
        limit = -1
        if self._is_sampled:
            # From each stretch enough lines for two of every rank.
            stretches = stretches[:: -(-len(stretches) // max(1, request.bins))]
            limit = max(2 * ranks, LINES_AT_ONCE // len(stretches))
        for stretch in stretches:
            yield from connection.execute(_LINES, (stretch.source_id, *stretch.begin, *stretch.end, limit))
        for source_id, begin, end in found.unreduced():
            yield from connection.execute(_LINES, (source_id, *begin, *end, -1))

    def _take(
        self,
        line: RankLine,
        axis_map: AxisMap,
        cuts: Mapping[int, float],
        request: ChartRequest,
    ) -> None:
        rank, attempt, step, at, data = line
        if step >= cuts.get(attempt, math.inf):
            return
        x = axis_map.place(attempt, step, at)
        if x is None or (request.window is not None and not request.window[0] <= x <= request.window[1]):
            return
        values = orjson.loads(data)
        for name, of_rank in self._buckets.items():
            value = as_float(values.get(name))
            if value is None:
                continue
            buckets = of_rank.get(rank)
            if buckets is None:
                buckets = of_rank[rank] = new_buckets(request)
            if self._attempts.setdefault((name, rank), attempt) != attempt:
                self._attempts[name, rank] = attempt
                buckets.append(x, None)
            buckets.append(x, value)

    def _curves(self, name: str, request: ChartRequest) -> RankCurves:
        wants_smooth = request.smoothing > 0 and not is_set(name)
        start, end = request.window or (-math.inf, math.inf)
        curves = []
        for rank, buckets in sorted(self._buckets[name].items()):
            bins: Sequence[Bin] = buckets.bins(max(2, request.bins), start, end)
            bins = smooth_bins(bins, request.smoothing) if wants_smooth else bins
            curves.append(RankCurve(rank, tuple(bins), buckets.last_value))
        return RankCurves(tuple(curves), self._is_sampled)


def _between(
    connection: sqlite3.Connection, since: Mapping[int, FilePosition], until: Mapping[int, FilePosition]
) -> Iterator[RankLine]:
    for source_id, end in until.items():
        if since[source_id] != end:
            yield from connection.execute(_LINES, (source_id, *since[source_id], *end, -1))
