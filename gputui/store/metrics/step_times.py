"""When a run's steps were done, from its stored metrics: a few rows are read, however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

_FROM = "SELECT step, at FROM metrics WHERE source_id = ? AND attempt = ? AND step IS NOT NULL AND at IS NOT NULL"
_IS_STEP = "AND data ->> '$.event' IS NULL"
# So many lines in a row must be wrong before a run is ended for its numbers.
_LINES_OF_TROUBLE = 5
_END = (1 << 62, 1 << 62)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of one run's steps, as the lines themselves tell them. UTC unix seconds; None is unknown."""

    connection: sqlite3.Connection
    run_id: str

    def first_at(self, attempt: int) -> float | None:
        """When the attempt did its first step."""
        found = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) >= (?, ?) {_IS_STEP} ORDER BY generation, byte_offset LIMIT 1",
                (source, attempt, *begin),
            ).fetchone()
            for source, begin, _ in self._places(attempt)
        ]
        return min((row[1] for row in found if row is not None), default=None)

    def last_at(self, attempt: int, step: int) -> float | None:
        """When the attempt did the last step that is not beyond ``step``; None if it did none of them."""
        found = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) < (?, ?) AND step <= ? {_IS_STEP} "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                (source, attempt, *end, step),
            ).fetchone()
            for source, _, end in self._places(attempt)
        ]
        return max((row[1] for row in found if row is not None), default=None)

    def repeats(self, attempt: int, step: int) -> bool:
        """Whether the attempt wrote ``step`` again after a later one, as where steps are counted within an epoch."""
        query = (
            "SELECT 1 FROM metrics AS again WHERE again.source_id = ? AND again.attempt = ? AND again.step = ? "
            "AND coalesce(again.rank, 0) = 0 AND again.data ->> '$.event' IS NULL AND EXISTS "
            "(SELECT 1 FROM metrics AS later WHERE later.source_id = again.source_id AND later.attempt = again.attempt "
            "AND later.step > again.step AND coalesce(later.rank, 0) = 0 AND later.data ->> '$.event' IS NULL "
            "AND (later.generation, later.byte_offset) < (again.generation, again.byte_offset)) LIMIT 1"
        )
        return any(
            self.connection.execute(query, (source, attempt, step)).fetchone() is not None
            for source in dict.fromkeys(source for source, _, _ in self._places(attempt))
        )

    def start_again(self, attempt: int) -> bool:
        """Whether the attempt's steps went back to its first one, as where they are counted within an epoch."""
        row = self.connection.execute(
            "SELECT first_step FROM attempts WHERE run_id = ? AND number = ?", (self.run_id, attempt)
        ).fetchone()
        return row is not None and row[0] is not None and self.repeats(attempt, row[0])

    def done_at(self, attempt: int, step: int) -> float | None:
        """When the attempt last did a step, a few lines before its last one aside: what went wrong at a step shows only
        in the lines that follow. None if it never did."""
        found = []
        for source, begin, end in self._places(attempt):
            newest = self.connection.execute(
                "SELECT generation, byte_offset FROM metrics WHERE source_id = ? AND attempt = ? "
                "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
                "AND step IS NOT NULL AND coalesce(rank, 0) = 0 AND data ->> '$.event' IS NULL "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1 OFFSET ?",
                (source, attempt, *begin, *end, _LINES_OF_TROUBLE - 1),
            ).fetchone()
            if newest is not None:
                found.append(
                    self.connection.execute(
                        f"{_FROM} AND (generation, byte_offset) <= (?, ?) AND step = ? {_IS_STEP} "
                        "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                        (source, attempt, *newest, step),
                    ).fetchone()
                )
        return min((row[1] for row in found if row is not None), default=None)

    def come_with_checkpoints(self) -> bool:
        """Whether lines are written only when a checkpoint is, so that steps after the newest are not known."""
        formats = self.connection.execute(
            "SELECT format FROM metric_sources WHERE run_id = ?", (self.run_id,)
        ).fetchall()
        return bool(formats) and all(row[0] == "hf" for row in formats)

    def newest_at(self, attempt: int, at: float, since: float) -> int | None:
        """The newest step that the attempt had recorded at a moment. None if its lines carry no times between
        ``since`` and then."""
        newest = self.newest_line(attempt, at, since)
        return None if newest is None else newest[1]

    def newest_line(self, attempt: int, at: float, since: float) -> tuple[float, int] | None:
        """The same, with the time of its line."""
        best: tuple[float, int] | None = None
        for source, begin, end in self._places(attempt):
            # Of millions of lines, the stretches lead to a few hundred.
            stretch = self.connection.execute(
                "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND attempt = ? "
                "AND min_at <= ? ORDER BY number DESC LIMIT 1",
                (source, attempt, at),
            ).fetchone()
            if stretch is not None:
                begin = (stretch[0], stretch[1])
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

    def _places(self, attempt: int) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """Each source with where the attempt begins in it and where the next one does."""
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
