"""When a run's steps were done, from its stored metrics: a few rows are read, however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

_FROM = "SELECT step, at FROM metrics WHERE source_id = ? AND attempt = ? AND step IS NOT NULL AND at IS NOT NULL"
_IS_STEP = "AND data ->> '$.event' IS NULL"
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
        """When the attempt did the last step that is not beyond ``step``; None where it did none of them."""
        found = [
            self.connection.execute(
                f"{_FROM} AND (generation, byte_offset) < (?, ?) AND step <= ? {_IS_STEP} "
                "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
                (source, attempt, *end, step),
            ).fetchone()
            for source, _, end in self._places(attempt)
        ]
        return max((row[1] for row in found if row is not None), default=None)

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
