"""What is known of the sources of a run's metrics, for a person: lines, names, and the forms of lines learned."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.formats import Reading
from gputui.metrics.learning import LearnedLines, LearnedState
from gputui.metrics.learning.patterns import profile_pattern
from gputui.store.metrics.stored_lines import NOT_METRICS

_NOT_OF_SOURCE = NOT_METRICS | {"total_steps"}
"""Names that are no metrics of a source: the number of steps in all is a property of the run."""


class LearnedForm(Struct, frozen=True):
    """A form of printed lines that was learned: a `LearnedShape` as a person sees it.

    Attributes:
        example: a line of this form.
        names: the names of its metrics.
        pattern: the pattern of a profile that reads it, None if no pattern can.
    """

    example: str
    names: tuple[str, ...]
    pattern: str | None


class SourceReport(Struct, frozen=True):
    """A source with lines, or whose output is searched for metrics.

    Attributes:
        lines: how many lines of it are stored.
        names: the names of its metrics.
        step: what counts its steps; None unless the profile or its header says so.
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
    for source_id, path, file_format, line_count, text in rows.fetchall():
        reading = msgspec.json.decode(text or "{}", type=Reading)
        report = SourceReport(path, file_format, line_count, names=_names(connection, source_id), step=reading.step)
        if file_format == "output" and not reading.patterns:
            learned = msgspec.convert(reading.learned or {}, LearnedState, strict=False)
            report = replace(report, forms=learned_forms(learned), remarks=tuple(LearnedLines(learned).remarks))
        if report.lines or report.forms or report.remarks:
            reports.append(report)
    return reports


def learned_forms(learned: LearnedState) -> tuple[LearnedForm, ...]:
    """The forms of lines that were learned, but for those that only count."""
    shapes = (shape for shape in learned.shapes if shape.names)
    return tuple(LearnedForm(shape.example, shape.names, profile_pattern(shape)) for shape in shapes)


def _names(connection: sqlite3.Connection, source_id: int) -> tuple[str, ...]:
    """The names of a source's metrics in the order of their first appearance."""
    rows = connection.execute("SELECT data FROM metric_newest WHERE source_id = ?", (source_id,))
    names = dict.fromkeys(name for (data,) in rows for name in orjson.loads(data))
    return tuple(name for name in names if name not in _NOT_OF_SOURCE)
