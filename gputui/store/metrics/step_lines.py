"""The lines of a run's steps, from its stored metrics. Reads a few rows, however many there are."""

from __future__ import annotations

import heapq
import itertools
import math
import sqlite3
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.store.metrics.stored_lines import END, NON_FINITE, START, FilePosition, LineQuery, rows_between

KINDS_OF_MIXED_LINES = ("tensorboard", "output")
"""Sources of which each line has a few metrics with steps of its own, as those of a test that a script prints with the
epoch: those of the loss count, if it is there."""
_LOSS_PATH = (
    """(SELECT '$."' || coalesce(o.training, o.validation) || '"' FROM metric_sources AS s """
    "JOIN metric_roles AS o USING (run_id) WHERE s.source_id = metrics.source_id)"
)
_IS_MIXED = f"""
SELECT 1 FROM metric_sources AS s JOIN metric_newest AS n USING (source_id) JOIN metric_roles AS o USING (run_id)
WHERE s.source_id = ? AND s.format IN {KINDS_OF_MIXED_LINES}
AND json_type(n.data, '$."' || coalesce(o.training, o.validation) || '"') NOTNULL LIMIT 1
"""  # noqa: S608
_LOSS = f"json_extract(data, {_LOSS_PATH})"
_LOSS_IS_FINITE = f"json_type(data, {_LOSS_PATH}) IN ('real', 'integer')"
_NON_FINITE = ", ".join(f"'{text}'" for text in NON_FINITE)
_LOSS_FILTERS = {
    "any": "",
    "finite": f"AND {_LOSS_IS_FINITE}",
    "known": f"AND ({_LOSS_IS_FINITE} OR {_LOSS} IN ({_NON_FINITE}))",
}
_COLUMNS = f"at, step, data ->> '$.time' NOTNULL, CASE WHEN {_LOSS_IS_FINITE} THEN {_LOSS} END, generation, byte_offset"
_IS_STEP = "attempt = ? AND step NOTNULL AND at NOTNULL AND data ->> '$.event' IS NULL"
_REPEATS = """
SELECT 1 FROM metrics AS again
WHERE again.source_id = ? AND again.attempt = ? AND again.step = ?
AND coalesce(again.rank, 0) = 0 AND again.data ->> '$.event' IS NULL
AND EXISTS (
    SELECT 1 FROM metrics AS later
    WHERE later.source_id = again.source_id AND later.attempt = again.attempt AND later.step > again.step
    AND coalesce(later.rank, 0) = 0 AND later.data ->> '$.event' IS NULL
    AND (iif(?, 0, later.generation), later.byte_offset) < (iif(?, 0, again.generation), again.byte_offset)
)
LIMIT 1
"""

Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)


class StepLine(Struct, frozen=True):
    """A line of a step.

    Attributes:
        at: When it was written, else when it arrived (UTC unix seconds).
        states_time: The line itself states ``at``.
        loss: None without a finite one.
        begin: Where it stands in its source.
    """

    at: float
    step: int
    states_time: bool
    loss: float | None
    begin: FilePosition

    @property
    def end(self) -> FilePosition:
        generation, offset = self.begin
        return generation, offset + 1


class LineFilter(Struct, frozen=True, kw_only=True):
    """The lines that a question is about.

    Attributes:
        steps: the first and the last step that count.
        times: the first and the last time that count, in UTC unix seconds.
        loss: ``finite``, or ``known``: a number, finite or not.
        ranks: a line that names no rank is of the first.
    """

    steps: Bounds = UNBOUNDED
    times: Bounds = UNBOUNDED
    loss: Literal["any", "finite", "known"] = "any"
    ranks: Literal["first", "all"] = "first"

    def sql(self) -> tuple[str, list[float]]:
        """Clauses that begin with AND, and their values."""
        clauses: list[str] = [_LOSS_FILTERS[self.loss]]
        values: list[float] = []
        if self.ranks == "first":
            clauses.append("AND coalesce(rank, 0) = 0")
        for column, bounds in (("step", self.steps), ("at", self.times)):
            if bounds != UNBOUNDED:
                clauses.append(f"AND {column} BETWEEN ? AND ?")
                values += bounds
        return " ".join(clauses), values


FIRST_RANK = LineFilter()
ALL_RANKS = LineFilter(ranks="all")


class SourceLines(Struct, frozen=True):
    """The lines of an attempt in one source, from one position up to another. Methods raise sqlite3.Error."""

    connection: sqlite3.Connection
    source_id: int
    attempt: int
    begin: FilePosition
    end: FilePosition

    def first(self, where: LineFilter = FIRST_RANK) -> StepLine | None:
        return next(self.lines(where), None)

    def newest(self, where: LineFilter = FIRST_RANK, skipped: int = 0) -> StepLine | None:
        """The newest line, after so many ``skipped`` ones."""
        lines = self.lines(where, is_newest_first=True)
        return next(itertools.islice(lines, skipped, None), None)

    def lines(self, where: LineFilter = FIRST_RANK, *, is_newest_first: bool = False) -> Iterator[StepLine]:
        """The lines in the order of the file, also where that was read several times."""
        clauses, values = where.sql()
        if self.connection.execute(_IS_MIXED, (self.source_id,)).fetchone() is not None:
            clauses = f"AND json_type(data, {_LOSS_PATH}) NOTNULL {clauses}"

        query = LineQuery(_COLUMNS, f"{_IS_STEP} {clauses}", (self.attempt, *values), is_newest_first)
        readings = [
            rows_between(self.connection, self.source_id, max(begin, self.begin), min(end, self.end), query)
            for begin, end in self._readings() or [(START, END)]
        ]
        for row in heapq.merge(*readings, key=itemgetter(-1), reverse=is_newest_first):
            at, step, states_time, loss, *begin = row
            yield StepLine(at, step, bool(states_time), loss, tuple(begin))

    def repeats(self, step: int) -> bool:
        """Return whether the attempt wrote ``step`` again after a later one."""
        is_one_file = len(self._readings()) > 1
        values = (self.source_id, self.attempt, step, is_one_file, is_one_file)
        return self.connection.execute(_REPEATS, values).fetchone() is not None

    def around(self, at: float) -> SourceLines:
        """The stretch with the lines of a moment, a few hundred of millions of lines; all if there is none."""
        begin = self._stretch_begin(at)
        if begin is None:
            return self
        following = self.connection.execute(
            "SELECT generation, byte_offset FROM metric_stretches "
            "WHERE source_id = ? AND attempt = ? AND (generation, byte_offset) > (?, ?) "
            "ORDER BY generation, byte_offset LIMIT 1",
            (self.source_id, self.attempt, *begin),
        ).fetchone()
        return replace(self, begin=begin, end=following or self.end)

    def after(self, at: float) -> SourceLines:
        """The lines from the stretch of a moment on."""
        return replace(self, begin=self._stretch_begin(at) or self.begin)

    def _stretch_begin(self, at: float) -> FilePosition | None:
        begin: FilePosition | None = self.connection.execute(
            "SELECT generation, byte_offset FROM metric_stretches "
            "WHERE source_id = ? AND attempt = ? AND min_at <= ? ORDER BY number DESC LIMIT 1",
            (self.source_id, self.attempt, at),
        ).fetchone()
        return begin

    def _readings(self) -> list[tuple[FilePosition, FilePosition]]:
        """The begin and end of each reading of an output that was read again; empty for other sources."""
        row = self.connection.execute(
            "SELECT first_generation, generation FROM metric_sources WHERE source_id = ? AND format = 'output'",
            (self.source_id,),
        ).fetchone()
        if row is None:
            return []
        first, newest = row
        return [((generation, 0), (generation + 1, 0)) for generation in range(first, newest + 1)]


class StepLines(Struct, frozen=True):
    """The lines of one run's steps. Methods raise sqlite3.Error."""

    connection: sqlite3.Connection
    run_id: str

    def first(self, attempt: int) -> StepLine | None:
        """The attempt's first line, of any rank."""
        lines = (source.first(ALL_RANKS) for source in self.sources(attempt))
        return min((line for line in lines if line is not None), key=_time_and_step, default=None)

    def newest(self, attempt: int, where: LineFilter = FIRST_RANK) -> StepLine | None:
        """The attempt's newest line, of equal times that of the last step."""
        sources: Iterable[SourceLines] = self.sources(attempt)
        if where.times != UNBOUNDED:
            _, last_at = where.times
            sources = (source.around(last_at) for source in sources)
        lines = (source.newest(where) for source in sources)
        return max((line for line in lines if line is not None), key=_time_and_step, default=None)

    def starts_again(self, attempt: int) -> bool:
        """Return whether the attempt's steps went back to its first one, as when they are counted within an epoch."""
        row = self.connection.execute(
            "SELECT first_step FROM attempts WHERE run_id = ? AND number = ?", (self.run_id, attempt)
        ).fetchone()
        return row is not None and row[0] is not None and self.repeats(attempt, row[0])

    def repeats(self, attempt: int, step: int) -> bool:
        """Return whether the attempt wrote ``step`` again after a later one."""
        return any(source.repeats(step) for source in self.sources(attempt))

    def come_with_checkpoints(self) -> bool:
        """Return whether lines are written only with checkpoints: steps after the newest one are unknown then."""
        formats = self.connection.execute(
            "SELECT format FROM metric_sources WHERE run_id = ?", (self.run_id,)
        ).fetchall()
        return bool(formats) and all(row[0] == "hf" for row in formats)

    def sources(self, attempt: int) -> Iterator[SourceLines]:
        """The sources with the attempt's steps, or all where none is known to have them."""
        sources = self.connection.execute(
            "SELECT s.source_id, max(n.data ->> '$.step' NOTNULL) FROM metric_sources AS s "
            "LEFT JOIN metric_newest AS n ON n.source_id = s.source_id AND n.attempt = ? "
            "WHERE run_id = ? GROUP BY s.source_id",
            (attempt, self.run_id),
        ).fetchall()
        are_known = any(has_steps for _, has_steps in sources)
        for source_id, has_steps in sources:
            if are_known and not has_steps:
                continue
            boundaries = self.connection.execute(
                "SELECT attempt, generation, byte_offset FROM metric_boundaries "
                "WHERE source_id = ? AND attempt >= ? ORDER BY attempt, generation, byte_offset",
                (source_id, attempt),
            ).fetchall()
            begins = [(generation, offset) for number, generation, offset in boundaries if number == attempt]
            later = [(generation, offset) for number, generation, offset in boundaries if number > attempt]
            begin = next(iter(begins), START)
            end = next(iter(later), END)
            yield SourceLines(self.connection, source_id, attempt, begin, end)


def up_to_step(step: int) -> LineFilter:
    """The lines of all ranks up to a step."""
    return LineFilter(steps=(-math.inf, step), ranks="all")


def _time_and_step(line: StepLine) -> tuple[float, int]:
    return line.at, line.step
