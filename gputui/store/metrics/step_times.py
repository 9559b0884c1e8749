"""When a run's steps were done, from its stored metrics. Reads a few rows, however many there are."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterator

from msgspec import Struct

_LINES = "FROM metrics WHERE source_id = ? AND attempt = ? AND step IS NOT NULL AND at IS NOT NULL"
_FROM = f"SELECT step, at {_LINES}"
_IS_STEP = "AND data ->> '$.event' IS NULL"
# A run is ended for bad values only after this many lines in a row.
_LINES_OF_TROUBLE = 5
_MOST_GAPS = 8
_MOST_ATTEMPTS = 3
_END = (1 << 62, 1 << 62)


class StepTimes(Struct, frozen=True):
    """The times of one run's steps, in UTC unix seconds; None is unknown."""

    connection: sqlite3.Connection
    run_id: str

    def first_at(self, attempt: int) -> float | None:
        """When the attempt did its first step."""
        rows = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) >= (?, ?) {_IS_STEP} ORDER BY generation, byte_offset LIMIT 1",
                (source, attempt, *begin),
            ).fetchone()
            for source, begin, _ in self._sections(attempt)
        ]
        return min((row[1] for row in rows if row is not None), default=None)

    def last_at(self, attempt: int, step: int) -> float | None:
        """When the attempt did its last step up to ``step``; None if it did none."""
        rows = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) < (?, ?) AND step <= ? {_IS_STEP} "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                (source, attempt, *end, step),
            ).fetchone()
            for source, _, end in self._sections(attempt)
        ]
        return max((row[1] for row in rows if row is not None), default=None)

    def repeats(self, attempt: int, step: int) -> bool:
        """Whether the attempt wrote ``step`` again after a later one, as when steps are counted within an epoch."""
        query = (
            "SELECT 1 FROM metrics AS again WHERE again.source_id = ? AND again.attempt = ? AND again.step = ? "
            "AND coalesce(again.rank, 0) = 0 AND again.data ->> '$.event' IS NULL AND EXISTS "
            "(SELECT 1 FROM metrics AS later WHERE later.source_id = again.source_id AND later.attempt = again.attempt "
            "AND later.step > again.step AND coalesce(later.rank, 0) = 0 AND later.data ->> '$.event' IS NULL "
            "AND (later.generation, later.byte_offset) < (again.generation, again.byte_offset)) LIMIT 1"
        )
        return any(
            self.connection.execute(query, (source, attempt, step)).fetchone() is not None
            for source in dict.fromkeys(source for source, _, _ in self._sections(attempt))
        )

    def start_again(self, attempt: int) -> bool:
        """Whether the attempt's steps went back to its first one, as when they are counted within an epoch."""
        row = self.connection.execute(
            "SELECT first_step FROM attempts WHERE run_id = ? AND number = ?", (self.run_id, attempt)
        ).fetchone()
        return row is not None and row[0] is not None and self.repeats(attempt, row[0])

    def done_at(self, attempt: int, step: int) -> float | None:
        """When the attempt last did a step, its last few lines left out: a failure at a step shows only in the lines
        that follow. None if it never did."""
        rows = []
        for source, begin, end in self._sections(attempt):
            newest = self.connection.execute(
                "SELECT generation, byte_offset FROM metrics WHERE source_id = ? AND attempt = ? "
                "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
                "AND step IS NOT NULL AND coalesce(rank, 0) = 0 AND data ->> '$.event' IS NULL "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1 OFFSET ?",
                (source, attempt, *begin, *end, _LINES_OF_TROUBLE - 1),
            ).fetchone()
            if newest is not None:
                rows.append(
                    self.connection.execute(
                        f"{_FROM} AND (generation, byte_offset) <= (?, ?) AND step = ? {_IS_STEP} "
                        "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                        (source, attempt, *newest, step),
                    ).fetchone()
                )
        return min((row[1] for row in rows if row is not None), default=None)

    def come_with_checkpoints(self) -> bool:
        """Whether lines are written only with checkpoints, so that steps after the newest one are unknown."""
        formats = self.connection.execute(
            "SELECT format FROM metric_sources WHERE run_id = ?", (self.run_id,)
        ).fetchall()
        return bool(formats) and all(row[0] == "hf" for row in formats)

    def newest_at(self, attempt: int, at: float, since: float) -> int | None:
        """The newest step that the attempt had recorded at a time; None if no line has a time between ``since`` and
        ``at``."""
        newest = self.newest_line(attempt, at, since)
        return None if newest is None else newest[1]

    def newest_line(self, attempt: int, at: float, since: float) -> tuple[float, int] | None:
        """(time, step) of that step's line."""
        best: tuple[float, int] | None = None
        for source, begin, end in self._sections(attempt):
            stretch = self._stretch(source, attempt, at)
            if stretch is not None:
                begin = stretch
                following = self.connection.execute(
                    "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND attempt = ? "
                    "AND (generation, byte_offset) > (?, ?) ORDER BY generation, byte_offset LIMIT 1",
                    (source, attempt, *begin),
                ).fetchone()
                end = end if following is None else (following[0], following[1])
            row = self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
                f"AND at BETWEEN ? AND ? AND coalesce(rank, 0) = 0 {_IS_STEP} "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                (source, attempt, *begin, *end, since, at),
            ).fetchone()
            if row is not None and (best is None or (row[1], row[0]) > best):
                best = (row[1], row[0])
        return best

    def latest_at(self, attempt: int, at: float, since: float) -> int | None:
        """The latest step that the attempt may have reached at a moment; None if its lines since ``since`` do not tell,
        such as a single line that nothing followed.

        It is before the step of the next line. Lines without a time arrive in blocks: it may be any step of the next
        block. After the last line it is as far from it as the lines before, or those of the attempts before, are from
        each other at most.
        """
        newest = self.newest_line(attempt, at, since)
        by_section = (self._step_before_next(attempt, at, *section) for section in self._sections(attempt))
        next_steps = [step for step in by_section if step is not None]
        if next_steps:
            step = min(next_steps)[1]
            return step if newest is None else max(step, newest[1])
        if newest is None:
            return None
        # Attempts that failed before their second line tell nothing, however many they were.
        earlier_gaps = (gap for earlier in range(attempt - 1, 0, -1) if (gap := self.widest_gap(earlier)) is not None)
        own = self.widest_gap(attempt, at, since)
        gaps = [*([] if own is None else [own]), *itertools.islice(earlier_gaps, _MOST_ATTEMPTS)]
        return newest[1] + max(1, *gaps) - 1 if gaps else None

    def widest_gap(self, attempt: int, at: float = math.inf, since: float = 0.0) -> int | None:
        """The most steps between two of the last times of an attempt's lines; None if there is but one."""
        steps: list[int] = []
        while len(steps) <= _MOST_GAPS and (line := self.newest_line(attempt, at, since)) is not None:
            at = math.nextafter(line[0], -math.inf)
            steps.append(line[1])
        return max((later - earlier for later, earlier in itertools.pairwise(steps)), default=None)

    def _step_before_next(
        self, attempt: int, at: float, source: int, begin: tuple[int, int], end: tuple[int, int]
    ) -> tuple[float, int] | None:
        """The time of a source's next line or block after a moment, and the last step that may precede it."""
        lines = self.connection.execute(
            f"SELECT step, at, data ->> '$.time' {_LINES} AND (generation, byte_offset) >= (?, ?) "
            "AND (generation, byte_offset) < (?, ?) AND at > ? AND coalesce(rank, 0) = 0 "
            f"{_IS_STEP} ORDER BY generation, byte_offset",
            (source, attempt, *(self._stretch(source, attempt, at) or begin), *end, at),
        )
        block: tuple[float, int] | None = None
        for step, told_at, time in lines:
            if time is not None:
                return block or (told_at, step - 1)
            if block is not None and told_at != block[0]:
                break
            block = (told_at, step)
        return block

    def last_sound(self, attempt: int, step: int | None = None) -> int | None:
        """The last step, or the last before ``step``, whose loss was a finite number; None if there is none."""
        rows = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
                f"AND step < coalesce(?, 9e999) AND json_type(data, '$.loss') IN ('real', 'integer') "
                f"AND coalesce(rank, 0) = 0 {_IS_STEP} "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                (source, attempt, *begin, *end, step),
            ).fetchone()
            for source, begin, end in self._sections(attempt)
        ]
        return max((row[0] for row in rows if row is not None), default=None)

    def unsound_since(self, attempt: int) -> tuple[int, float] | None:
        """The step and the time since which no loss of the attempt was a finite number; None if its newest one was, or
        has none."""
        for source, begin, end in self._sections(attempt):
            lines = (
                f"{_LINES} AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
                f"AND data ->> '$.loss' IS NOT NULL AND coalesce(rank, 0) = 0 {_IS_STEP}"
            )
            backwards = "ORDER BY generation DESC, byte_offset DESC LIMIT 1"
            newest = self.connection.execute(
                f"SELECT json_type(data, '$.loss') {lines} {backwards}", (source, attempt, *begin, *end)
            ).fetchone()
            if newest is None or newest[0] != "text":
                continue
            sound = self.connection.execute(
                f"SELECT generation, byte_offset {lines} AND json_type(data, '$.loss') != 'text' {backwards}",
                (source, attempt, *begin, *end),
            ).fetchone()
            row = self.connection.execute(
                f"SELECT step, at {lines} AND (generation, byte_offset) > (?, ?) "
                "ORDER BY generation, byte_offset LIMIT 1",
                (source, attempt, *begin, *end, *((-1, -1) if sound is None else sound)),
            ).fetchone()
            return int(row[0]), float(row[1])
        return None

    def _stretch(self, source: int, attempt: int, at: float) -> tuple[int, int] | None:
        """The begin of the stretch with the lines of a moment: a few hundred of millions of lines."""
        begin: tuple[int, int] | None = self.connection.execute(
            "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND attempt = ? "
            "AND min_at <= ? ORDER BY number DESC LIMIT 1",
            (source, attempt, at),
        ).fetchone()
        return begin

    def _sections(self, attempt: int) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """The part of each source that belongs to an attempt: (source, begin, begin of the next attempt)."""
        sources = self.connection.execute(
            "SELECT source_id FROM metric_sources WHERE run_id = ?", (self.run_id,)
        ).fetchall()
        for (source,) in sources:
            bounds = self.connection.execute(
                "SELECT attempt, generation, byte_offset FROM metric_boundaries WHERE source_id = ? AND attempt >= ? "
                "ORDER BY attempt, generation, byte_offset",
                (source, attempt),
            ).fetchall()
            begin = next(((row[1], row[2]) for row in bounds if row[0] == attempt), (0, 0))
            end = next(((row[1], row[2]) for row in bounds if row[0] > attempt), _END)
            yield source, begin, end
