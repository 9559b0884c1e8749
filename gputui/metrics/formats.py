"""How lines of other formats become the same rows: JSON lines, a program's own output, CSV.

A format sees one line at a time and keeps nothing but the header of the file it is in, so that what is stored never
depends on how the bytes arrived.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any, Protocol

from gputui.metrics.contract import Parsed, ParsedLine, Rejected, cut_off, parse_line, parse_values

STEP_NAMES = ("step", "iter", "iteration")

# A regular expression from a profile meets lines from anywhere: this bounds what a bad pair can cost.
MATCHED_CHARACTERS = 2000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRAILING = ",;:%)]}"
_CUT_OFF = Rejected("cut off: no newline at its end")


class LineFormat(Protocol):
    """What the tailer asks of a format. ``breaks_at_return``: a carriage return ends a line too (progress bars)."""

    breaks_at_return: bool
    has_header: bool

    def begin(self, header: bytes) -> None:
        """A file begins, or is taken up again: its first line, where the format has a header."""

    def parse(self, line: bytes) -> Parsed:
        """A line without its newline; None where it is no metric and no fault."""

    def parse_unterminated(self, line: bytes) -> Parsed:
        """The last bytes of an attempt, of which no newline follows."""


class JsonLines:
    """The contract's own format."""

    breaks_at_return = False
    has_header = False
    parse = staticmethod(parse_line)

    def begin(self, header: bytes) -> None:
        """JSON lines have no header."""

    def parse_unterminated(self, line: bytes) -> Parsed:
        return cut_off(parse_line(line))


class OutputPatterns:
    """Metrics read from what a program prints, by regular expressions with named groups.

    Each needs a group ``step``, ``iter`` or ``iteration``; the first pattern that matches a line counts. Lines that
    match none are simply not metrics.

    Raises ValueError where a pattern does not compile, names no step, or there is none.
    """

    breaks_at_return = True
    has_header = False

    def __init__(self, patterns: Sequence[str]) -> None:
        if not patterns:
            raise ValueError("metrics from standard output need at least one pattern")
        self._patterns = [_compiled(number, text) for number, text in enumerate(patterns, 1)]

    def begin(self, header: bytes) -> None:
        """Output has no header."""

    def parse(self, line: bytes) -> Parsed:
        match = self._match(line)
        return None if match is None else _from_match(match)

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number that ends where the output ends may have lost digits: only what more text follows is believed."""
        match = self._match(line)
        if match is None:
            return None
        last = max(match.end(name) for name in match.re.groupindex)
        return _from_match(match) if last < len(match.string.rstrip()) else _CUT_OFF

    def _match(self, line: bytes) -> re.Match[str] | None:
        text = line[: 4 * MATCHED_CHARACTERS].decode("utf-8", "replace")
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        text = text[:MATCHED_CHARACTERS]
        for pattern in self._patterns:
            match = pattern.search(text)
            if match is not None:
                return match
        return None


class CsvLines:
    """A CSV file: a header line, one of its columns the step; an empty cell is an unknown value."""

    breaks_at_return = False
    has_header = True

    def __init__(self) -> None:
        self._header = b""
        self._columns: list[str] = []
        self._step: int | None = None

    def begin(self, header: bytes) -> None:
        self._header = header.strip()
        self._columns = _cells(header) or []
        names = [name.lower() for name in self._columns]
        self._step = next((names.index(name) for name in STEP_NAMES if name in names), None)

    def parse(self, line: bytes) -> Parsed:
        stripped = line.strip()
        # A script that opens its file anew for each attempt writes its header again.
        if not stripped or stripped == self._header:
            return None
        cells = _cells(line)
        if cells is None:
            return Rejected("not CSV text")
        if self._step is None:
            return Rejected(f"the header names none of the columns {', '.join(STEP_NAMES)}")
        if len(cells) != len(self._columns):
            return Rejected(f"{len(cells)} cells under a header of {len(self._columns)}")
        values = {name: _value(cell) for name, cell in zip(self._columns, cells, strict=True) if name and cell}
        return _with_step(values, cells[self._step])

    def parse_unterminated(self, line: bytes) -> Parsed:
        parsed = self.parse(line)
        return _CUT_OFF if isinstance(parsed, ParsedLine) else cut_off(parsed)


def line_format(name: str, patterns: Sequence[str] = ()) -> LineFormat:
    """The format of that name: ``jsonl``, ``csv``, or ``stdout`` with its patterns.

    Raises ValueError for another name and as OutputPatterns does.
    """
    if name == "jsonl":
        return JsonLines()
    if name == "csv":
        return CsvLines()
    if name == "stdout":
        return OutputPatterns(patterns)
    raise ValueError(f"unknown metrics source {name!r}; known are jsonl, csv, stdout and hf")


def _compiled(number: int, text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"metrics pattern {number} is no regular expression: {error}") from error
    if not any(name in pattern.groupindex for name in STEP_NAMES):
        raise ValueError(f"metrics pattern {number} has no group named {' or '.join(STEP_NAMES)}")
    return pattern


def _from_match(match: re.Match[str]) -> Parsed:
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    step = next((found[name] for name in STEP_NAMES if name in found), "")
    return _with_step({name: _value(text) for name, text in found.items()}, step)


def _with_step(values: dict[str, Any], step_text: str) -> ParsedLine | Rejected:
    step = _number(step_text)
    if step is None:
        return Rejected("step is not a whole number")
    rest = {name: value for name, value in values.items() if name.lower() not in STEP_NAMES}
    return parse_values({"step": step, **rest})


def _value(text: str) -> int | float | str:
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    r"""A number as programs print it: ``\S+`` in a pattern takes the comma or per cent sign behind it along."""
    text = text.strip().rstrip(_TRAILING)
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _cells(line: bytes) -> list[str] | None:
    try:
        rows = list(csv.reader([line.decode("utf-8-sig").strip("\r\n")], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return [cell.strip() for cell in rows[0]] if rows else []
