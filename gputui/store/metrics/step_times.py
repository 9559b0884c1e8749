"""Times of a run's steps, from its stored metrics. Reads a few rows, however many there are."""

from __future__ import annotations

import heapq
import itertools
import math
import sqlite3
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from msgspec import Struct

from gputui.store.metrics.queries import END, NON_FINITE, START, FilePosition, rows_between

# A run is ended for bad values only after this many lines in a row.
_UNSOUND_LINES = 5
_MOST_GAPS = 8
_MOST_ATTEMPTS = 3
_FIRST_RANK = "AND coalesce(rank, 0) = 0"
_LOSS_PATH = (
    """(SELECT '$."' || coalesce(o.training, o.validation) || '"' FROM metric_sources AS s """
    "JOIN metric_roles AS o USING (run_id) WHERE s.source_id = metrics.source_id)"
)
KINDS_OF_MIXED_LINES = ("tensorboard", "output")
"""Sources of which each line has a few metrics with steps of its own, as those of a test that a script prints with the
epoch: those of the loss count, if it is there."""
_IS_MIXED = f"""
SELECT 1 FROM metric_sources AS s JOIN metric_newest AS n USING (source_id) JOIN metric_roles AS o USING (run_id)
WHERE s.source_id = ? AND s.format IN {KINDS_OF_MIXED_LINES}
AND json_type(n.data, '$."' || coalesce(o.training, o.validation) || '"') NOTNULL LIMIT 1
"""  # noqa: S608
_LOSS = f"json_extract(data, {_LOSS_PATH})"
_LOSS_IS_FINITE = f"json_type(data, {_LOSS_PATH}) IN ('real', 'integer')"
_WORDS = ", ".join(f"'{word}'" for word in NON_FINITE)
_LOSS_IS_UNSOUND = f"{_LOSS} IN ({_WORDS})"
_LOSS_IS_KNOWN = f"AND ({_LOSS_IS_FINITE} OR {_LOSS_IS_UNSOUND}) {_FIRST_RANK}"

Section = tuple[int, FilePosition, FilePosition]
"""The part of a source that belongs to an attempt: source, begin, begin of the next attempt."""


class StepTimes(Struct, frozen=True):
    """The times of one run's steps, in UTC unix seconds; None is unknown."""

    connection: sqlite3.Connection
    run_id: str

    def first_at(self, attempt: int) -> float | None:
        """The time of the attempt's first step."""
        rows = (self._line("at", attempt, section, is_newest=False) for section in self._sections(attempt))
        return min((row[0] for row in rows if row is not None), default=None)

    def last_at(self, attempt: int, step: int) -> float | None:
        """The time of the attempt's last step up to ``step``; None if it did none."""
        rows = (self._line("at", attempt, section, "AND step <= ?", step) for section in self._sections(attempt))
        return max((row[0] for row in rows if row is not None), default=None)

    def stamped_at(self, attempt: int) -> float | None:
        """The time that the attempt's newest line itself states; None if it states none."""
        lines = (self._line("at, data ->> '$.time'", attempt, section) for section in self._sections(attempt))
        newest = max((line for line in lines if line is not None), default=(0.0, None))
        if newest[1] is None:
            return None
        return float(newest[0])

    def repeats(self, attempt: int, step: int) -> bool:
        """Return whether the attempt wrote ``step`` again after a later one, as when steps are
        counted within an epoch."""
        query = (
            "SELECT 1 FROM metrics AS again WHERE again.source_id = ? AND again.attempt = ? AND "
            "again.step = ? AND coalesce(again.rank, 0) = 0 AND again.data ->> '$.event' IS NULL "
            "AND EXISTS (SELECT 1 FROM metrics AS later WHERE later.source_id = again.source_id "
            "AND later.attempt = again.attempt AND later.step > again.step AND "
            "coalesce(later.rank, 0) = 0 AND later.data ->> '$.event' IS NULL AND "
            "(iif(?, 0, later.generation), later.byte_offset) < (iif(?, 0, again.generation), again.byte_offset)) "
            "LIMIT 1"
        )
        for source, _, _ in self._sections(attempt):
            is_one_file = len(self._readings(source)) > 1
            if self.connection.execute(query, (source, attempt, step, is_one_file, is_one_file)).fetchone() is not None:
                return True
        return False

    def start_again(self, attempt: int) -> bool:
        """Return whether the attempt's steps went back to its first one, as when they are counted
        within an epoch."""
        row = self.connection.execute(
            "SELECT first_step FROM attempts WHERE run_id = ? AND number = ?", (self.run_id, attempt)
        ).fetchone()
        return row is not None and row[0] is not None and self.repeats(attempt, row[0])

    def done_at(self, attempt: int, step: int) -> float | None:
        """The time of the attempt's last step, its last few lines left out: a failure at a step
        shows only in the lines that follow. None if it never did."""
        found = []
        for source, begin, end in self._sections(attempt):
            newest = self._line(
                "generation, byte_offset + 1", attempt, (source, begin, end), _FIRST_RANK, skipped=_UNSOUND_LINES - 1
            )
            row = newest and self._line("at", attempt, (source, begin, newest), "AND step = ?", step)
            if row is not None:
                found.append(row[0])
        return min(found, default=None)

    def come_with_checkpoints(self) -> bool:
        """Return whether lines are written only with checkpoints, so that steps after the newest
        one are unknown."""
        formats = self.connection.execute(
            "SELECT format FROM metric_sources WHERE run_id = ?", (self.run_id,)
        ).fetchall()
        return bool(formats) and all(row[0] == "hf" for row in formats)

    def newest_at(self, attempt: int, at: float, since: float) -> int | None:
        """The newest step that the attempt had recorded at a time; None if no line has a time
        between ``since`` and ``at``."""
        newest = self.newest_line(attempt, at, since)
        if newest is None:
            return None
        return newest[1]

    def newest_line(self, attempt: int, at: float, since: float) -> tuple[float, int] | None:
        """(time, step) of that step's line."""
        found = []
        for source, begin, end in self._sections(attempt):
            stretch = self._stretch(source, attempt, at)
            if stretch is not None:
                following = self.connection.execute(
                    "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND "
                    "attempt = ? AND (generation, byte_offset) > (?, ?) ORDER BY generation, "
                    "byte_offset LIMIT 1",
                    (source, attempt, *stretch),
                ).fetchone()
                begin, end = stretch, following or end
            where = f"AND at BETWEEN ? AND ? {_FIRST_RANK}"
            found.append(self._line("at, step", attempt, (source, begin, end), where, since, at))
        return max((row for row in found if row is not None), default=None)

    def latest_at(self, attempt: int, at: float, since: float) -> int | None:
        """The latest step that the attempt may have reached at a moment; None if its lines since
        ``since`` do not tell. It is before the step of the next line or, of lines without a time,
        any of the next block. After the last line it is as far from it as the lines before are from
        each other at most."""
        newest = self.newest_line(attempt, at, since)
        by_section = (self._step_before_next(attempt, at, section) for section in self._sections(attempt))
        next_steps = [step for step in by_section if step is not None]
        if next_steps:
            step = min(next_steps)[1]
            if newest is None:
                return step
            return max(step, newest[1])
        if newest is None:
            return None
        # Attempts that failed before their second line tell nothing, however many they were.
        earlier_gaps = (gap for earlier in range(attempt - 1, 0, -1) if (gap := self.widest_gap(earlier)) is not None)
        own = self.widest_gap(attempt, at, since)
        gaps = [*([] if own is None else [own]), *itertools.islice(earlier_gaps, _MOST_ATTEMPTS)]
        if gaps:
            return newest[1] + max(1, *gaps) - 1
        return None

    def widest_gap(self, attempt: int, at: float = math.inf, since: float = 0.0) -> int | None:
        """The most steps between two of the last times of an attempt's lines; None if there is but
        one."""
        steps: list[int] = []
        while len(steps) <= _MOST_GAPS and (line := self.newest_line(attempt, at, since)) is not None:
            at = math.nextafter(line[0], -math.inf)
            steps.append(line[1])
        return max((later - earlier for later, earlier in itertools.pairwise(steps)), default=None)

    def _step_before_next(self, attempt: int, at: float, section: Section) -> tuple[float, int] | None:
        """The time of a source's next line or block after a moment, and the last step that may
        precede it."""
        source, begin, end = section
        section = source, self._stretch(source, attempt, at) or begin, end
        block: tuple[float, int] | None = None
        where = f"AND at > ? {_FIRST_RANK}"
        for step, told_at, time in self._lines(
            "step, at, data ->> '$.time'", attempt, section, where, at, is_newest=False
        ):
            if time is not None:
                return block or (told_at, step - 1)
            if block is not None and told_at != block[0]:
                break
            block = (told_at, step)
        return block

    def last_sound(self, attempt: int, step: int | None = None) -> int | None:
        """The last step, or the last before ``step``, whose loss was a finite number; None if there
        is none."""
        where = f"AND step < coalesce(?, 9e999) AND {_LOSS_IS_FINITE} {_FIRST_RANK}"
        rows = (self._line("step", attempt, section, where, step) for section in self._sections(attempt))
        return max((row[0] for row in rows if row is not None), default=None)

    def first_losses(self, attempt: int, count: int) -> list[float]:
        """The attempt's first losses that are finite numbers, at most ``count``, of the first source with
        one."""
        return self._losses(attempt, count, is_newest=False)

    def last_losses(self, attempt: int, step: int, count: int) -> list[float]:
        """The same of its last losses up to a step."""
        return self._losses(attempt, count, "AND step <= ?", step, is_newest=True)

    def _losses(self, attempt: int, count: int, where: str = "", *values: Any, is_newest: bool) -> list[float]:
        losses: list[float] = []
        for section in self._sections(attempt):
            is_sound = f"AND {_LOSS_IS_FINITE} {_FIRST_RANK} {where}"
            rows = self._lines(_LOSS, attempt, section, is_sound, *values, is_newest=is_newest)
            losses = losses or [float(row[0]) for row in itertools.islice(rows, count)]
        return losses

    def unsound_since(self, attempt: int) -> tuple[int, float] | None:
        """The step and the time since which no loss of the attempt was a finite number; None if its
        newest one was, or has none."""
        for source, begin, end in self._sections(attempt):
            section = source, begin, end
            newest = self._line(_LOSS_IS_FINITE, attempt, section, _LOSS_IS_KNOWN)
            if newest is None or newest[0]:
                continue
            sound = self._line("generation, byte_offset + 1", attempt, section, f"AND {_LOSS_IS_FINITE} {_FIRST_RANK}")
            row = self._line("step, at", attempt, (source, sound or begin, end), _LOSS_IS_KNOWN, is_newest=False)
            if row is None:
                return None
            return (int(row[0]), float(row[1]))
        return None

    def _line(
        self, columns: str, attempt: int, section: Section, where: str = "", *values: Any,
        is_newest: bool = True, skipped: int = 0,
    ) -> Any:  # fmt: skip
        """The newest or first line with a step and a time that is no event."""
        rows = self._lines(columns, attempt, section, where, *values, is_newest=is_newest)
        return next(itertools.islice(rows, skipped, None), None)

    def _lines(
        self, columns: str, attempt: int, section: Section, where: str, *values: Any, is_newest: bool
    ) -> Iterator[Any]:
        """Lines of a section in the order of the file, also where that was read several times."""
        source, begin, end = section
        is_step = "AND attempt = ? AND step IS NOT NULL AND at IS NOT NULL AND data ->> '$.event' IS NULL"
        if self.connection.execute(_IS_MIXED, (source,)).fetchone() is not None:
            where = f"AND json_type(data, {_LOSS_PATH}) NOTNULL {where}"

        def rows(begin: FilePosition, end: FilePosition) -> sqlite3.Cursor:
            return rows_between(
                self.connection, source, begin, end, attempt, *values,
                columns=f"{columns}, byte_offset", where=f"{is_step} {where}", is_newest_first=is_newest,
            )  # fmt: skip

        readings = self._readings(source) or [(START, END)]
        parts = (rows(max(begin, first), min(end, last)) for first, last in readings)
        for row in heapq.merge(*parts, key=itemgetter(-1), reverse=is_newest):
            yield row[:-1]

    def _readings(self, source: int) -> list[tuple[FilePosition, FilePosition]]:
        """The begin and end of each reading of an output that was read again; empty for other sources."""
        row = self.connection.execute(
            "SELECT first_generation, generation FROM metric_sources WHERE source_id = ? AND format = 'output'",
            (source,),
        ).fetchone()
        if row is None:
            return []
        return [((number, 0), (number + 1, 0)) for number in range(row[0], row[1] + 1)]

    def _stretch(self, source: int, attempt: int, at: float) -> FilePosition | None:
        """The begin of the stretch with the lines of a moment: a few hundred of millions of lines."""
        begin: FilePosition | None = self.connection.execute(
            "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND attempt "
            "= ? AND min_at <= ? ORDER BY number DESC LIMIT 1",
            (source, attempt, at),
        ).fetchone()
        return begin

    def _sections(self, attempt: int) -> Iterator[Section]:
        """Of the sources with the attempt's steps, or of all where none is known to have them."""
        sources = self.connection.execute(
            "SELECT s.source_id, max(n.data ->> '$.step' NOTNULL) FROM metric_sources AS s "
            "LEFT JOIN metric_newest AS n ON n.source_id = s.source_id AND n.attempt = ? "
            "WHERE run_id = ? GROUP BY s.source_id",
            (attempt, self.run_id),
        ).fetchall()
        are_known = any(has_steps for _, has_steps in sources)
        for source, has_steps in sources:
            if are_known and not has_steps:
                continue
            bounds = self.connection.execute(
                "SELECT attempt, generation, byte_offset FROM metric_boundaries WHERE source_id = "
                "? AND attempt >= ? ORDER BY attempt, generation, byte_offset",
                (source, attempt),
            ).fetchall()
            begin = next(((row[1], row[2]) for row in bounds if row[0] == attempt), START)
            end = next(((row[1], row[2]) for row in bounds if row[0] > attempt), END)
            yield source, begin, end
