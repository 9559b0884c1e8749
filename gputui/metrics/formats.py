"""Formats of metrics lines: JSON lines, CSV, and by name that of printed lines.

A format parses one line at a time and keeps only the header of its file, so the result never
depends on how the bytes arrived.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gputui.metrics.contract import Parsed, ParsedLine, Rejected, parse_line, parse_values
from gputui.metrics.learning import LearnedLines, LearnedState
from gputui.metrics.line_format import LineFormat
from gputui.metrics.printed import CUT_OFF, STEP_NAMES, OutputPatterns, step_line
from gputui.metrics.values import printed_number

# Kind of a source → the outputs of a rank that it searches.
PRINTED_STREAMS = {"stdout": ("stdout",), "stderr": ("stderr",), "output": ("stdout", "stderr")}

HISTORY = "hf"
"""The kind of a source whose files `HistoryReader` reads whole."""


class Reading(Struct, frozen=True):
    """The way in which a profile reads lines.

    Attributes:
        patterns: Regular expressions for printed lines; without any, their forms are learned.
        step: The name of the step, where it is an unusual one.
        units: Factors of values, by name.
        streams: The outputs of a rank to search.
        place: The folder of a tracker's file below that of its run, which names its metrics; of MLflow, the metric.
        learned: What earlier readers have learned, see `LineFormat.learned`.
        batch_size: The samples of a batch of the attempt that prints the lines, if they are known.
    """

    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = msgspec.field(default_factory=dict)
    streams: tuple[str, ...] = ("stdout",)
    place: str = ""
    learned: Any = None
    batch_size: int | None = None


DEFAULT_READING = Reading()


class JsonLines(LineFormat):
    """The contract's own format; with ``step``, for scripts that name the step differently. Another
    value ``step`` of such a line becomes ``step_``."""

    def __init__(self, step: str | None = None) -> None:
        self._step = None if step == "step" else step

    def parse(self, line: bytes) -> Parsed:
        if self._step is None:
            return parse_line(line)
        try:
            # Python's json reads NaN, which orjson rejects.
            values = json.loads(line)
        except (ValueError, RecursionError):
            return parse_line(line)
        if not isinstance(values, dict) or self._step not in values:
            return parse_line(line)
        renamed = {"step": values[self._step]}
        for name, value in values.items():
            if name == "step":
                name = "step_"
            renamed[name] = value
        return parse_values(renamed)


class CsvLines(LineFormat):
    """A CSV file with a header and a column for the step: ``step``, else one of STEP_NAMES in any
    case. An empty cell is an unknown value."""

    has_header = True

    def __init__(self, step: str | None = None) -> None:
        self._step_name = step
        self._use(b"")

    def begin(self, header: bytes, attempts_first: bytes = b"") -> None:
        self._use(header)
        if self._is_header(_cells(attempts_first) or []):
            self._use(attempts_first)

    def parse(self, line: bytes) -> Parsed:
        stripped = line.strip()
        # A script that appends to its file with each attempt repeats the header.
        if not stripped or stripped == self._header:
            return None
        cells = _cells(line)
        if cells is None:
            return Rejected("not a line of comma-separated UTF-8")
        if self._is_header(cells):
            self._use(line)
            return None
        if self._step is None:
            names = self._step_name or " or ".join(STEP_NAMES)
            return Rejected(f"the header names no column {names} between commas")
        if len(cells) != len(self._columns):
            return Rejected(f"{len(cells)} cells under a header of {len(self._columns)}")
        values = {name: cell for name, cell in zip(self._columns, cells, strict=True) if name and cell}
        return step_line(values, cells[self._step])

    def parse_unterminated(self, line: bytes) -> Parsed:
        header = self._header
        parsed = super().parse_unterminated(line)
        self._use(header)
        if isinstance(parsed, ParsedLine):
            return CUT_OFF
        return parsed

    def _use(self, header: bytes) -> None:
        self._header = header.strip()
        self._columns = _cells(header) or []
        self._step = self._step_column(self._columns)

    def _step_column(self, columns: Sequence[str]) -> int | None:
        if self._step_name is not None:
            if self._step_name in columns:
                return columns.index(self._step_name)
            return None
        names = [name.lower() for name in columns]
        return next((names.index(name) for name in STEP_NAMES if name in names), None)

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a line is a header: it names the step, and has no number."""
        return self._step_column(cells) is not None and all(printed_number(cell) is None for cell in cells)


class MlflowLines(LineFormat):
    """The file of one metric in MLflow's file store: lines of time (unix milliseconds), value and step."""

    def __init__(self, name: str) -> None:
        self._name = name

    def parse(self, line: bytes) -> Parsed:
        try:
            time, value, step = (float(word) for word in line.split()[:3])
        except ValueError:
            if line.strip():
                return Rejected("not a line of time, value and step")
            return None
        return parse_values({"step": step, "time": time / 1000, self._name: value})

    def parse_unterminated(self, line: bytes) -> Parsed:
        return CUT_OFF


def format_named(name: str, reading: Reading = DEFAULT_READING) -> LineFormat:
    """The format of a name: ``jsonl``, ``csv``, ``mlflow`` or ``stdout``. Raises ValueError for another one, and for
    bad patterns."""
    match name:
        case "jsonl":
            return JsonLines(reading.step)
        case "csv":
            return CsvLines(reading.step)
        case "mlflow":
            return MlflowLines(reading.place)
        case "stdout" if reading.patterns:
            return OutputPatterns(reading.patterns, reading.step, reading.units, reading.learned)
        case "stdout":
            learned = msgspec.convert(reading.learned or {}, LearnedState, strict=False)
            return LearnedLines(learned, batch_size=reading.batch_size)
    raise ValueError(f"{name!r} is no format of lines")


def _cells(line: bytes) -> list[str] | None:
    try:
        rows = list(csv.reader([line.decode("utf-8-sig").strip("\r\n")], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    if rows:
        return [cell.strip() for cell in rows[0]]
    return []
