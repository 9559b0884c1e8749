"""What is known of the sources of a run's metrics, for a person: lines, names, and the forms of lines learned."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from gputui.metrics.formats import Reading
from gputui.metrics.learning import LearnedLines, LearnedState
from gputui.metrics.learning.patterns import profile_pattern
from gputui.store.metrics.stored_lines import NOT_METRICS


class LearnedForm(Struct, frozen=True):
    """A form of printed lines: one of them, the names of its metrics, and the pattern of a
    profile that reads it, if one can."""

    example: str
    names: tuple[str, ...]
    pattern: str | None


class SourceReport(Struct, frozen=True):
    """A source with lines, or whose output is searched for metrics.

    Attributes:
        lines: how many.
        names: those of its metrics.
        step: what counts its steps, if the profile or its header says so.
        forms: the forms of lines that were learned.
        remarks: what was seen in its lines and is not taken.
    """

    path: str
    format: str
    lines: int
    names: tuple[str, ...]
    step: str | None
    forms: tuple[LearnedForm, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape


def source_reports(connection: sqlite3.Connection, run_id: str) -> list[SourceReport]:
    """The sources of a run's newest attempt that have lines, or whose lines are learned. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT s.source_id, s.path, s.format, s.line_count, s.reading FROM metric_sources AS s "
        "JOIN metric_boundaries AS b USING (source_id) JOIN runs AS r USING (run_id) "
        "WHERE s.run_id = ? AND b.attempt = r.attempt GROUP BY s.source_id ORDER BY s.source_id",
        (run_id,),
    )
    reports = []
    for source_id, path, kind, lines, text in rows.fetchall():
        reading = msgspec.json.decode(text or "{}", type=Reading)
        forms: tuple[LearnedForm, ...] = ()
        remarks: tuple[str, ...] = ()
        if kind == "output" and not reading.patterns:
            forms, remarks = _learned(reading)
        if lines or forms or remarks:
            names = tuple(_names(connection, source_id))
            reports.append(
                SourceReport(path, kind, lines, names=names, step=reading.step, forms=forms, remarks=remarks)
            )
    return reports


def _learned(reading: Reading) -> tuple[tuple[LearnedForm, ...], tuple[str, ...]]:
    learned = msgspec.convert(reading.learned or {}, LearnedState, strict=False)
    return learned_forms(learned), tuple(LearnedLines(learned).remarks)


def learned_forms(learned: LearnedState) -> tuple[LearnedForm, ...]:
    """The forms of lines that were learned, but for those that only count."""
    shapes = (shape for shape in learned.shapes if shape.names)
    return tuple(LearnedForm(shape.example, shape.names, profile_pattern(shape)) for shape in shapes)


def _names(connection: sqlite3.Connection, source_id: int) -> Iterator[str]:
    rows = connection.execute("SELECT data FROM metric_newest WHERE source_id = ?", (source_id,))
    names = {name: None for (data,) in rows for name in orjson.loads(data)}
    # The number of steps in all is a property of the run.
    return (name for name in names if name not in NOT_METRICS | {"total_steps"})
