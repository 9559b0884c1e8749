"""How lines of other formats become the same rows: JSON lines, a program's own output, CSV.

A format sees one line at a time and keeps nothing but the header of the file it is in, so that what is stored never
depends on how the bytes arrived.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from gputui.metrics.contract import Parsed, ParsedLine, Rejected, cut_off, parse_line, parse_values

if TYPE_CHECKING:
    import regex

STEP_NAMES = ("step", "iter", "iteration")

# Names that together are a step: a pass, a step in it, and how many steps a pass has.
STEP_IN_EPOCH = ("epoch", "iter", "total")

# What a unit behind a number is multiplied with: seconds, bytes, and plain counts come out.
UNITS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12,
    "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip

# Kind of a source → which of a rank's outputs it searches.
PRINTED_STREAMS = {"stdout": ("stdout",), "stderr": ("stderr",), "output": ("stdout", "stderr")}

# A regular expression from a profile meets lines from anywhere: these bound what a bad pair can cost. The agent reads
# lines in its loop, and a pattern with nested repeats may take years for one of them.
MATCHED_CHARACTERS = 2000
MATCH_SECONDS = 0.02
MATCHES_CUT_SHORT = 3

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRAILING = ",;:%)]}"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WITH_UNIT = re.compile(rf"({_NUMBER})\s?([A-Za-zµ]+)(?:/([a-z]+))?")
_SECOND = frozenset({"s", "sec"})
_CUT_OFF = Rejected("cut off: no newline at its end")


class Reading(NamedTuple):
    """How a profile has lines read. ``patterns`` are regular expressions for what a script prints, ``step`` the name of
    the group or column that is the step where it is no usual one, ``units`` what values of a name are multiplied
    with, and ``streams`` which of a rank's outputs are searched."""

    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = MappingProxyType({})
    streams: tuple[str, ...] = ("stdout",)

    def to_json(self) -> str:
        """As the store keeps it with a source."""
        return json.dumps({**self._asdict(), "units": dict(self.units)})

    @classmethod
    def from_json(cls, text: str | None) -> Reading:
        values = json.loads(text or "{}")
        lists = {name: tuple(values[name]) for name in ("patterns", "streams") if values.get(name)}
        return cls(step=values.get("step"), units=values.get("units") or {}, **lists)


AS_USUAL = Reading()


class LineFormat(Protocol):
    """What the tailer asks of a format. ``breaks_at_return``: a carriage return ends a line too (progress bars).
    ``mark`` is a number by which a line is known again, in 32 bits."""

    breaks_at_return: bool
    has_header: bool

    def mark(self, line: bytes) -> int: ...

    def begin(self, header: bytes) -> None:
        """A file begins, or is taken up again: its first line, where the format has a header."""

    def parse(self, line: bytes) -> Parsed:
        """A line without its newline; None if it is no metric and no fault."""

    def parse_unterminated(self, line: bytes) -> Parsed:
        """The last bytes of an attempt, of which no newline follows."""


class JsonLines:
    """The contract's own format; with ``step``, that of a script which calls the step otherwise."""

    breaks_at_return = False
    has_header = False
    mark = staticmethod(zlib.crc32)

    def __init__(self, step: str | None = None) -> None:
        self.parse: Callable[[bytes], Parsed] = parse_line if step is None else partial(_parse_named, step)

    def begin(self, header: bytes) -> None:
        """JSON lines have no header."""

    def parse_unterminated(self, line: bytes) -> Parsed:
        return cut_off(self.parse(line))


def _parse_named(step: str, line: bytes) -> Parsed:
    """A line of JSON in which ``step`` is the name of the step."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        return parse_line(line)
    if not isinstance(values, dict) or "step" in values or step not in values:
        return parse_line(line)
    return parse_values({"step": values[step], **values})


class OutputPatterns:
    """Metrics read from what a program prints, by regular expressions with named groups.

    Each needs a step: a group called as the profile says, else ``step``, else ``epoch``, ``iter`` and ``total``
    together (a step within a pass: ``epoch * total + iter``), else ``iter`` or ``iteration``. The first pattern that
    matches a line counts. Lines that match none are simply not metrics.

    Raises ValueError if a pattern does not compile, names no step, or there is none.
    """

    breaks_at_return = True
    has_header = False
    mark = staticmethod(zlib.crc32)

    def __init__(
        self, patterns: Sequence[str], step: str | None = None, units: Mapping[str, float] | None = None
    ) -> None:
        if not patterns:
            raise ValueError("metrics from what is printed need at least one pattern")
        self._patterns = [compile_pattern(number, text, step) for number, text in enumerate(patterns, 1)]
        self._step = step
        self._units = units or {}
        self._cut_short = 0

    def begin(self, header: bytes) -> None:
        """Output has no header."""

    def parse(self, line: bytes) -> Parsed:
        match = self._match(line)
        return match if match is None or isinstance(match, Rejected) else self._from_match(match)

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number that ends where the output ends may have lost digits: only what more text follows is believed."""
        match = self._match(line)
        if match is None or isinstance(match, Rejected):
            return match
        last = max(match.end(name) for name in match.re.groupindex)
        return self._from_match(match) if last < len(match.string.rstrip()) else _CUT_OFF

    def _match(self, line: bytes) -> regex.Match[str] | Rejected | None:
        """Nothing is searched any more once some lines took too long: the rest would cost as much each."""
        if self._cut_short >= MATCHES_CUT_SHORT:
            return None
        text = printed_text(line)
        for number, pattern in enumerate(self._patterns, 1):
            try:
                match = pattern.search(text, timeout=MATCH_SECONDS)
            except TimeoutError:
                self._cut_short += 1
                last = "; no more lines are searched" if self._cut_short == MATCHES_CUT_SHORT else ""
                reason = f"metrics pattern {number} needs more than {MATCH_SECONDS * 1000:.0f} ms for it"
                return Rejected(f"{reason}; write it without repeats inside repeats{last}")
            if match is not None:
                return match
        return None

    def _from_match(self, match: regex.Match[str]) -> Parsed:
        found = {name: text for name, text in match.groupdict().items() if text is not None}
        values = {name: self._value(name, text) for name, text in found.items()}
        if self._step is not None:
            return _with_step(values, found.get(self._step, ""))
        if "step" not in found and all(name in found for name in STEP_IN_EPOCH):
            epoch, place, total = (_number(found[name]) for name in STEP_IN_EPOCH)
            if not (isinstance(epoch, int) and isinstance(place, int) and isinstance(total, int)):
                return Rejected("epoch, iter and total are not whole numbers")
            del values["total"]
            return _with_step(values, str(epoch * total + place))
        return _with_step(values, next((found[name] for name in STEP_NAMES if name in found), ""))

    def _value(self, name: str, text: str) -> int | float | str:
        number = _number(text)
        if number is not None:
            factor = self._units.get(name)
            return number if factor is None else number * factor
        return _number_with_unit(name, text)


class CsvLines:
    """A CSV file: a header line, one of its columns the step; an empty cell is an unknown value."""

    breaks_at_return = False
    has_header = True

    def __init__(self) -> None:
        self._header = b""
        self._columns: list[str] = []
        self._sorted: list[tuple[int, bytes]] = []
        self._step: int | None = None

    def begin(self, header: bytes) -> None:
        self._header = header.strip()
        self._columns = _cells(header) or []
        known = sorted((name, place) for place, name in enumerate(self._columns) if name)
        self._sorted = [(place, name.encode()) for name, place in known]
        names = [name.lower() for name in self._columns]
        self._step = next((names.index(name) for name in STEP_NAMES if name in names), None)

    def parse(self, line: bytes) -> Parsed:
        stripped = line.strip()
        # A script that reopens its file for each attempt writes its header again.
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

    def mark(self, line: bytes) -> int:
        """Of what the line says, with any other columns, in any order. A column of whole numbers
        gets decimals as soon as one of them is unknown (pandas)."""
        stripped = line.strip()
        if not stripped or stripped == self._header:
            return 0
        quoted = b'"' in line
        cells = [cell.encode() for cell in _cells(line) or ()] if quoted else [c.strip() for c in stripped.split(b",")]
        if len(cells) != len(self._columns):
            return zlib.crc32(stripped)
        found = [name + b"=" + cells[place].removesuffix(b".0") for place, name in self._sorted if cells[place]]
        return zlib.crc32(b",".join(found))

    def parse_unterminated(self, line: bytes) -> Parsed:
        parsed = self.parse(line)
        return _CUT_OFF if isinstance(parsed, ParsedLine) else cut_off(parsed)


def line_format(name: str, reading: Reading = AS_USUAL) -> LineFormat:
    """The format of that name: ``jsonl``, ``csv``, or ``stdout`` with its patterns.

    Raises ValueError for another name and as OutputPatterns does.
    """
    if name == "jsonl":
        return JsonLines(reading.step)
    if name == "csv":
        return CsvLines()
    if name == "stdout":
        return OutputPatterns(reading.patterns, reading.step, reading.units)
    raise ValueError(f"unknown metrics source {name!r}; known are jsonl, csv, stdout and hf")


def compile_pattern(number: int, text: str, step: str | None = None) -> regex.Pattern[str]:
    """A profile's pattern, the ``number``-th. Raises ValueError if it does not compile or names no step."""
    # Here, for it takes 14 ms and most commands meet no pattern.
    import regex

    try:
        # The standard syntax holds: what only the other knows is no pattern.
        re.compile(text)
        pattern = regex.compile(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"metrics pattern {number} is no regular expression: {error}") from error
    names = STEP_NAMES if step is None else (step,)
    if not any(name in pattern.groupindex for name in names):
        raise ValueError(f"metrics pattern {number} has no group named {' or '.join(names)}")
    return pattern


def printed_text(line: bytes) -> str:
    """What patterns see of a printed line: its beginning, without colours and moves of the cursor."""
    text = line[: 4 * MATCHED_CHARACTERS].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text[:MATCHED_CHARACTERS]


def _with_step(values: dict[str, Any], step_text: str) -> ParsedLine | Rejected:
    step = _number(step_text)
    if step is None:
        return Rejected("step is not a whole number")
    rest = {name: value for name, value in values.items() if name.lower() not in STEP_NAMES}
    return parse_values({"step": step, **rest})


def _value(text: str) -> int | float | str:
    number = _number(text)
    return text if number is None else number


def _number_with_unit(name: str, text: str) -> float | str:
    """``17.4ms``, ``1.2k``, ``35.1it/s`` or ``1.5s/it`` as a number in seconds, bytes or plain counts; the text where
    it is none of these. Bars change from steps per second to seconds per step when it goes slowly: what is called a
    time is one, everything else a rate."""
    match = _WITH_UNIT.fullmatch(text.strip().rstrip(_TRAILING))
    if match is None:
        return text
    number, unit, per = float(match[1]), match[2], match[3]
    if per is None or (per in _SECOND and unit in UNITS):
        return number * UNITS[unit] if unit in UNITS else text
    is_time = name.endswith("time")
    if per in _SECOND:
        return number if not is_time else 1 / number if number else text
    if unit not in ("s", "ms", "us"):
        return text
    seconds = number * UNITS[unit]
    return seconds if is_time else 1 / seconds if seconds else text


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
