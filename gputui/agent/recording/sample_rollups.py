"""Minutes, hours and days out of samples, as time passes.

Samples of a span that is over are put together from what is stored, a slice at a time, and the mark up to which that
was done moves in the transaction of the span's row: an agent that is killed is followed by one that begins the span
again. A span that is computed again, because the clock was set back, gives the same row with its added samples.
A day is put together from its hours whenever one of them is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from gputui.agent.recording import day_rollups
from gputui.gpu.tiers import SLOW_SECONDS
from gputui.runs.repository import transaction
from gputui.store import samples
from gputui.store.costs import energy_between
from gputui.store.rollups import HOUR, MINUTE
from gputui.store.samples import Row
from gputui.store.series import GPU, HOST, HOST_ID, SLOW
from gputui.store.span_summary import GPU_KEPT, HOST_KEPT, MEMORY_TEMPERATURE, Gathered, names

# One such slice takes about 3 ms; a longer backlog waits for the next turn.
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
    """The span that a source's slices are being gathered into: ``at`` is its begin, ``read_until`` how far it is."""

    source: int
    at: int
    read_until: float
    gathered: Gathered


@dataclass(slots=True)
class Rollups:
    """``interval_seconds`` is how often samples are taken; ``clock`` gives monotonic seconds, to bound a turn."""

    connection: sqlite3.Connection
    interval_seconds: float
    clock: Callable[[], float]
    _done: tuple[int, int] | None = None
    _behind: bool = field(default=True)
    _open: dict[int, _Open] = field(default_factory=dict)
    """By the length of the span: that in which the last slice ended."""

    @property
    def is_behind(self) -> bool:
        """Whether spans that are over still wait to be put together."""
        return self._behind

    def turn(self, now: float, deadline: float) -> None:
        """Put together what is over by ``now`` (UTC unix seconds), until the clock shows ``deadline``. Raises
        sqlite3.Error with nothing of the unfinished part changed."""
        # The counter's first reading after a span belongs to it in part.
        over_by = now - max(SLOW_SECONDS, self.interval_seconds) * 2
        closed = (int(over_by // MINUTE) * MINUTE, int(over_by // HOUR) * HOUR)
        if closed == self._done and not self._behind:
            return
        if self._done is not None and closed < self._done:
            # The clock was set back: samples may come to what has been gathered.
            self._open.clear()
        self._done = closed
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
        opened = self._open.pop(span, None)
        if opened is not None and (opened.source, opened.at) != (source, mark):
            opened = None
        begin = mark if opened is None else opened.read_until
        series, columns = (HOST, _HOST_COLUMNS) if source == HOST_ID else (GPU, _GPU_COLUMNS)
        rows = samples.between(self.connection, series, source, columns, begin, end, ROWS_AT_ONCE)
        until = end if len(rows) < ROWS_AT_ONCE else rows.pop()[0]
        done, opened = self._gather(span, source, rows, until, opened)
        with transaction(self.connection):
            self._store(span, source, [self._summary(span, source, one) for one in done])
            self._move(span, source, int(until // span) * span if opened is None else opened.at)
        if opened is not None:
            self._open[span] = opened

    def _gather(
        self, span: int, source: int, rows: Sequence[Row], until: float, opened: _Open | None
    ) -> tuple[list[_Open], _Open | None]:
        """The spans that are complete with these rows, which are all up to ``until``, and the one that is not."""
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

    def _summary(self, span: int, source: int, one: _Open) -> tuple[int, list[object]]:
        gathered, at = one.gathered, one.at
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
        # A span whose samples were deleted keeps the row that was made of all of them.
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
