"""Rollups of samples into minutes, hours and days.

A span that is over is computed from stored samples, a slice at a time. A mark of progress moves in the transaction that
writes the span's row, so the successor of a killed agent repeats the span. A span that is repeated because the clock
was set back gives the same row plus its new samples. A day is computed from its hours whenever one of them changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from gputui.agent.recording import day_rollups
from gputui.machine.tiers import SLOW_SECONDS
from gputui.runs.repository import transaction
from gputui.store import samples
from gputui.store.costs import energy_between
from gputui.store.rollups import HOUR, MINUTE
from gputui.store.samples import Row
from gputui.store.series import GPU, HOST, HOST_ID, SLOW
from gputui.store.span_summary import GPU_KEPT, HOST_KEPT, MEMORY_TEMPERATURE, Gathered, names

# Rows of one slice, which takes about 3 ms.
ROWS_AT_ONCE = 1000

_GPU_COLUMNS = ("state", "throttle_reasons", *(kept.column for kept in GPU_KEPT))
_HOST_COLUMNS = tuple(kept.column for kept in HOST_KEPT)
_TABLES = {
    (MINUTE, True): "host_minutes",
    (HOUR, True): "host_hours",
    (MINUTE, False): "gpu_minutes",
    (HOUR, False): "gpu_hours",
}
_GPU_NAMES = [
    "gpu_id", "at", "sample_count", *names(GPU_KEPT), "throttled_fraction", "energy_joules",
    *names((MEMORY_TEMPERATURE,)),
]  # fmt: skip
_HOST_NAMES = ["at", "sample_count", *names(HOST_KEPT)]


@dataclass(slots=True)
class _Open:
    """A span of which not all slices are read yet. ``at`` is its begin, ``read_until`` the end of the last slice."""

    source: int
    at: int
    read_until: float
    gathered: Gathered


@dataclass(slots=True)
class Rollups:
    """Computes the rollups of all sources. ``interval_seconds`` is the sampling interval; ``clock`` returns monotonic
    seconds. ``is_behind``: spans that are over are not rolled up yet."""

    connection: sqlite3.Connection
    interval_seconds: float
    clock: Callable[[], float]
    is_behind: bool = True
    _done: tuple[int, int] | None = None
    # The unfinished span by its length.
    _open: dict[int, _Open] = field(default_factory=dict)

    def turn(self, now: float, deadline: float) -> None:
        """Roll up the spans that are over by ``now`` (UTC unix seconds), until ``deadline`` (monotonic). Raises
        sqlite3.Error without a partial change."""
        # A span's energy needs the first counter reading after it.
        over_by = now - max(SLOW_SECONDS, self.interval_seconds) * 2
        closed = (int(over_by // MINUTE) * MINUTE, int(over_by // HOUR) * HOUR)
        if closed == self._done and not self.is_behind:
            return
        if self._done is not None and closed < self._done:
            # The clock was set back: gathered spans may get more samples.
            self._open.clear()
        self._done = closed
        sources = [HOST_ID, *(row[0] for row in self.connection.execute("SELECT gpu_id FROM gpus ORDER BY gpu_id"))]
        for span, end in zip((MINUTE, HOUR), closed, strict=True):
            for source in sources:
                while (mark := self._mark(span, source)) != end:
                    if self.clock() >= deadline:
                        self.is_behind = True
                        return
                    self._advance(span, source, mark, end)
        self.is_behind = False

    def _advance(self, span: int, source: int, mark: int, end: int) -> None:
        """Roll up one slice of one source after its mark."""
        if mark > end:
            # The clock was set back: new samples belong to spans that are done already.
            self._move(span, source, end)
            return
        opened = self._open.pop(span, None)
        if opened is not None and (opened.source, opened.at) != (source, mark):
            opened = None
        begin = mark if opened is None else opened.read_until
        series, columns = (HOST, _HOST_COLUMNS) if source == HOST_ID else (GPU, _GPU_COLUMNS)
        rows = samples.between(self.connection, series, source, columns, begin, end, ROWS_AT_ONCE)
        until = end if len(rows) < ROWS_AT_ONCE else rows.pop()[0]
        done, opened = self._gather(span, source, rows, until, opened)
        with transaction(self.connection):
            self._store(span, source, [self._summary(span, source, span_open) for span_open in done])
            self._move(span, source, int(until // span) * span if opened is None else opened.at)
        if opened is not None:
            self._open[span] = opened

    def _gather(
        self, span: int, source: int, rows: Sequence[Row], until: float, opened: _Open | None
    ) -> tuple[list[_Open], _Open | None]:
        """Add rows, which are complete up to ``until``; return the spans that are over, and the unfinished one."""
        done: list[_Open] = []
        for at, group in groupby(rows, key=lambda row: int(row[0] // span) * span):
            if opened is None or opened.at != at:
                done += [] if opened is None else [opened]
                opened = _Open(source, at, until, Gathered(HOST_KEPT if source == HOST_ID else GPU_KEPT))
            columns = list(zip(*group, strict=True))[1:]
            if source == HOST_ID:
                opened.gathered.add(columns)
            else:
                opened.gathered.add(columns[2:], states=columns[0], reasons=columns[1])
        if opened is not None:
            opened.read_until = until
            if opened.at + span <= until:
                return [*done, opened], None
        return done, opened

    def _summary(self, span: int, source: int, span_open: _Open) -> tuple[int, list[object]]:
        gathered, at = span_open.gathered, span_open.at
        if source == HOST_ID:
            return at, [at, gathered.samples, *gathered.summary()]
        longest = max(60.0, 3 * self.interval_seconds)
        slow = samples.between(
            self.connection,
            SLOW,
            source,
            ("energy_joules", MEMORY_TEMPERATURE.column),
            at - longest,
            at + span + longest,
        )
        energy = energy_between(
            [(when, joules) for when, joules, _ in slow if joules is not None], at, at + span, longest
        )
        warmth = Gathered((MEMORY_TEMPERATURE,))
        warmth.add([[celsius for when, _, celsius in slow if at <= when < at + span]])
        return at, [
            source,
            at,
            gathered.answered,
            *gathered.summary(),
            gathered.throttled_fraction,
            None if energy is None else round(energy, 1),
            *warmth.summary(),
        ]

    def _store(self, span: int, source: int, made: Sequence[tuple[int, list[object]]]) -> None:
        if not made:
            return
        columns = _HOST_NAMES if source == HOST_ID else _GPU_NAMES
        (raw_since,) = self.connection.execute("SELECT raw_since FROM record_bounds").fetchone()
        # A span whose samples were deleted keeps the row that was computed from all of them.
        lasting = [values for at, values in made if at < raw_since]
        for clash, some in (("IGNORE", lasting), ("REPLACE", [values for at, values in made if at >= raw_since])):
            self.connection.executemany(
                f"INSERT OR {clash} INTO {_TABLES[span, source == HOST_ID]} ({', '.join(columns)}) "  # noqa: S608
                f"VALUES ({', '.join('?' * len(columns))})",
                some,
            )
        if span == HOUR:
            day_rollups.renew(self.connection, source, (at for at, _ in made))

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
