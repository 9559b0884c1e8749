"""Minutes and hours out of samples, as time passes.

Samples of a span that is over are put together from the stored rows, and the mark up to which that was done moves in
the same transaction: an agent that is killed is followed by one that goes on there. A span that is done again, because
the clock was set back, gives the same row with the samples that came to it.
"""

from __future__ import annotations

import itertools
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gputui.gpu.tiers import SLOW_SECONDS
from gputui.runs.repository import transaction
from gputui.store.energy import Reading, energy_between
from gputui.store.summaries import GPU_KEPT, HOST_KEPT, HOUR, MINUTE, names, summarise, throttled_fraction

HOST_ID = 0
# One such slice takes about 10 ms; a longer backlog waits for the next turn.
ROWS_AT_ONCE = 4000
TURN_SECONDS = 0.02

_GPU_COLUMNS = [kept.column for kept in GPU_KEPT]
_HOST_COLUMNS = [kept.column for kept in HOST_KEPT]
_GPU_ROWS = (
    f"SELECT at, state, throttle_reasons, {', '.join(_GPU_COLUMNS)} FROM gpu_samples "  # noqa: S608 - fixed names
    "WHERE gpu_id = ? AND at >= ? AND at < ? ORDER BY at LIMIT ?"
)
_HOST_ROWS = (
    f"SELECT at, {', '.join(_HOST_COLUMNS)} FROM host_samples "  # noqa: S608
    "WHERE ? = 0 AND at >= ? AND at < ? ORDER BY at LIMIT ?"
)
_TABLES = {
    (MINUTE, True): "host_minutes",
    (HOUR, True): "host_hours",
    (MINUTE, False): "gpu_minutes",
    (HOUR, False): "gpu_hours",
}
_GPU_NAMES = ["gpu_id", "at", "sample_count", *names(GPU_KEPT), "throttled_fraction", "energy_joules"]
_HOST_NAMES = ["at", "sample_count", *names(HOST_KEPT)]

Row = tuple[float, ...]


@dataclass(slots=True)
class Rollups:
    """``interval_seconds`` is how often samples are taken; ``clock`` gives monotonic seconds, to bound a turn."""

    connection: sqlite3.Connection
    interval_seconds: float
    clock: Callable[[], float]
    _done: tuple[int, int] | None = None
    _behind: bool = field(default=True)

    @property
    def is_behind(self) -> bool:
        """Whether spans that are over still wait to be put together."""
        return self._behind

    def turn(self, now: float) -> None:
        """Put together what is over by ``now`` (UTC unix seconds), for about TURN_SECONDS. Raises sqlite3.Error with
        nothing of the unfinished part changed."""
        # The counter's first reading after a span belongs to it in part.
        over_by = now - max(SLOW_SECONDS, self.interval_seconds) * 2
        closed = (int(over_by // MINUTE) * MINUTE, int(over_by // HOUR) * HOUR)
        if closed == self._done and not self._behind:
            return
        self._done = closed
        deadline = self.clock() + TURN_SECONDS
        sources = [HOST_ID, *(row[0] for row in self.connection.execute("SELECT gpu_id FROM gpus ORDER BY gpu_id"))]
        for span, end in zip((MINUTE, HOUR), closed, strict=True):
            for source in sources:
                while (mark := self._mark(span, source)) != end:
                    if self.clock() >= deadline:
                        self._behind = True
                        return
                    self._advance(span, source, mark, end)
        self._behind = False

    def _advance(self, span: int, source: int, mark: int, end: int) -> None:
        """One slice of one source, from its mark on."""
        if mark > end:
            # The clock was set back: what is sampled from here on belongs to spans that were done already.
            self._move(span, source, end)
            return
        rows, until = self._rows(source, mark, end, ROWS_AT_ONCE), end
        if len(rows) == ROWS_AT_ONCE:
            until = int(rows[-1][0] // span) * span
            first = int(rows[0][0] // span) * span
            if until == first:
                until = first + span
                rows = self._rows(source, first, until, -1)
            else:
                rows = [row for row in rows if row[0] < until]
        made = self._summaries(span, source, rows)
        with transaction(self.connection):
            self._store(span, source, made)
            self._move(span, source, until)

    def _rows(self, source: int, begin: float, end: float, limit: int) -> list[Row]:
        query = _HOST_ROWS if source == HOST_ID else _GPU_ROWS
        return self.connection.execute(query, (source, begin, end, limit)).fetchall()

    def _summaries(self, span: int, source: int, rows: Sequence[Row]) -> list[tuple[int, list[object]]]:
        if not rows:
            return []
        if source == HOST_ID:
            return [(at, _host_summary(at, group)) for at, group in _by_span(rows, span)]
        longest = max(60.0, 3 * self.interval_seconds)
        readings = self._readings(source, rows[0][0] - span - longest, rows[-1][0] + span + longest)
        times = [at for at, _ in readings]
        made = []
        for at, group in _by_span(rows, span):
            near = slice(bisect_left(times, at - longest), bisect_right(times, at + span + longest))
            energy = energy_between(readings[near], at, at + span, longest)
            made.append((at, _gpu_summary(source, at, group, energy)))
        return made

    def _readings(self, gpu_id: int, begin: float, end: float) -> list[Reading]:
        return self.connection.execute(
            "SELECT at, energy_joules FROM gpu_slow_samples WHERE gpu_id = ? AND at >= ? AND at < ? "
            "AND energy_joules IS NOT NULL ORDER BY at",
            (gpu_id, begin, end),
        ).fetchall()

    def _store(self, span: int, source: int, made: Sequence[tuple[int, list[object]]]) -> None:
        if not made:
            return
        columns = _HOST_NAMES if source == HOST_ID else _GPU_NAMES
        (raw_since,) = self.connection.execute("SELECT raw_since FROM record_bounds").fetchone()
        # A span whose samples were deleted keeps the row that was made of all of them.
        lasting = [values for at, values in made if at < raw_since]
        for clash, some in (("IGNORE", lasting), ("REPLACE", [values for at, values in made if at >= raw_since])):
            self.connection.executemany(
                f"INSERT OR {clash} INTO {_TABLES[span, source == HOST_ID]} ({', '.join(columns)}) "  # noqa: S608
                f"VALUES ({', '.join('?' * len(columns))})",
                some,
            )

    def _mark(self, span: int, source: int) -> int:
        row = self.connection.execute(
            "SELECT until FROM rollup_marks WHERE span_seconds = ? AND gpu_id = ?", (span, source)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _move(self, span: int, source: int, until: int) -> None:
        self.connection.execute(
            "INSERT INTO rollup_marks (span_seconds, gpu_id, until) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET until = excluded.until",
            (span, source, until),
        )


def _by_span(rows: Sequence[Row], span: int) -> list[tuple[int, list[Row]]]:
    grouped = itertools.groupby(rows, key=lambda row: int(row[0] // span) * span)
    return [(at, list(group)) for at, group in grouped]


def _host_summary(at: int, rows: Sequence[Row]) -> list[object]:
    columns = list(zip(*rows, strict=True))
    return [at, len(rows), *summarise(HOST_KEPT, columns[1:])]


def _gpu_summary(gpu_id: int, at: int, rows: Sequence[Row], energy_joules: float | None) -> list[object]:
    columns = list(zip(*rows, strict=True))
    return [
        gpu_id,
        at,
        sum(state == "ok" for state in columns[1]),
        *summarise(GPU_KEPT, columns[3:]),
        throttled_fraction(columns[2]),
        None if energy_joules is None else round(energy_joules, 1),
    ]
