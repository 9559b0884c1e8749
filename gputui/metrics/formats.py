"""Formats of metrics lines: JSON lines, the output of a program, CSV.

A format parses one line at a time and keeps only the header of its file, so the result never
depends on how the bytes arrived.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gputui.core.text import SEQUENCE
from gputui.metrics.contract import Parsed, ParsedLine, Rejected, parse_line, parse_values

if TYPE_CHECKING:
    import regex

STEP_NAMES = ("step", "iter", "iteration")

# Factors that convert units to seconds, bytes and plain counts.
UNITS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12,
    "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip

# Kind of a source → the outputs of a rank that it searches.
PRINTED_STREAMS = {"stdout": ("stdout",), "stderr": ("stderr",), "output": ("stdout", "stderr")}

# Limits for regular expressions from profiles: the agent matches lines in its loop, and a pattern
# with nested repeats may take years for one line.
MATCHED_CHARACTERS = 2000
MATCH_SECONDS = 0.02
MAX_TIMEOUTS = 3

_TRAILING = ",;:%)]}"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_WITH_UNIT = re.compile(rf"({_NUMBER})\s?([A-Za-zµ]+)(?:/([a-z]+))?")
_SECOND = frozenset({"s", "sec"})
_CUT_OFF = Rejected("cut off: no newline at its end")


class Reading(NamedTuple):
    """How a profile reads lines. ``patterns`` are regular expressions for printed lines, ``step``
    is the name of an unusual group or column for the step, ``units`` are factors of values by name,
    ``streams`` are the outputs of a rank to search, and ``epochs`` is what earlier readers of the
    run have learned, see `EpochCount`."""

    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = MappingProxyType({})
    streams: tuple[str, ...] = ("stdout",)
    epochs: Mapping[str, Sequence[int]] = MappingProxyType({})

    def to_json(self) -> str:
        """The stored form."""
        return json.dumps({**self._asdict(), "units": dict(self.units), "epochs": dict(self.epochs)})

    @classmethod
    def from_json(cls, text: str | None) -> Reading:
        values = json.loads(text or "{}")
        lists = {name: tuple(values[name]) for name in ("patterns", "streams") if values.get(name)}
        return cls(step=values.get("step"), units=values.get("units") or {}, epochs=values.get("epochs") or {}, **lists)


DEFAULT_READING = Reading()


class LineFormat:
    """A format of lines. ``breaks_at_return``: a carriage return also ends a line (progress bars).
    ``learned`` is what the next reader of the run must get as `Reading.epochs`."""

    breaks_at_return = False
    has_header = False

    @property
    def learned(self) -> Mapping[str, Sequence[int]]:
        return {}

    def begin(self, header: bytes, attempts_first: bytes = b"") -> None:
        """A file begins or is continued: its first line if the format has a header, and the first
        line of the attempt that is read, which may be a header of its own."""

    def parse(self, line: bytes) -> Parsed:
        """Parse a line without its newline; None if it is neither metrics nor an error."""
        raise NotImplementedError

    def parse_unterminated(self, line: bytes) -> Parsed:
        """Parse the last bytes of an attempt, which have no newline: valid if complete, else
        rejected as cut off."""
        parsed = self.parse(line)
        return Rejected(f"cut off: {parsed.reason}") if isinstance(parsed, Rejected) else parsed


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
        others = {"step_" if name == "step" else name: value for name, value in values.items()}
        return parse_values({"step": values[self._step], **others})


class EpochCount:
    """Counts the steps of a line that names an epoch and a place in it on through the training.

    Without a printed total, an epoch is as long as the first one that ends. A place that passes its
    total, or does not begin again with the next epoch, is a step of the whole training already.
    ``learned`` is the length of an epoch, 0 for such a place, and the first epoch; None before an
    epoch ends.
    """

    def __init__(self, learned: Sequence[int] | None = None) -> None:
        self.learned = learned
        self._first: int | None = None
        self._last = (0, 0)
        self._stride = 1

    def step(self, epoch: int, place: int, total: int | None) -> int:
        """The step of the next line."""
        is_first = self._first is None
        self._first = epoch if self._first is None else self._first
        (last_epoch, last_place), self._last = self._last, (epoch, place)
        if self.learned is None:
            ends = not is_first and epoch > last_epoch
            if (total is not None and place > total) or (ends and place > last_place):
                self.learned = (0, self._first)
            elif ends:
                self.learned = (total or last_place + self._stride - place, self._first)
            elif not is_first:
                self._stride = max(1, place - last_place)
        length, first = self.learned or (total, 0)
        if length == 0:
            return place
        return epoch * total + place if total is not None else (epoch - first) * (length or 0) + place


class OutputPatterns(LineFormat):
    """Metrics in the output of a program, found by regular expressions with named groups.

    Each pattern needs a step: the group ``step`` of the profile, else ``step``, else ``epoch`` and
    ``iter`` together, with or without ``total`` (see `EpochCount`), else ``iter`` or ``iteration``.
    The first pattern that matches a line counts. Other lines are no metrics.

    Raises ValueError if a pattern does not compile, has no step, or there is none.
    """

    breaks_at_return = True

    def __init__(
        self,
        patterns: Sequence[str],
        step: str | None = None,
        units: Mapping[str, float] | None = None,
        epochs: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not patterns:
            raise ValueError("metrics from what is printed need at least one pattern")
        self._patterns = [compile_pattern(number, text, step) for number, text in enumerate(patterns, 1)]
        self._step = step
        self._units = units or {}
        self._epochs = [EpochCount((epochs or {}).get(str(number))) for number in range(len(patterns))]
        self._timeouts = 0

    @property
    def learned(self) -> Mapping[str, Sequence[int]]:
        return {str(number): one.learned for number, one in enumerate(self._epochs) if one.learned is not None}

    def parse(self, line: bytes) -> Parsed:
        match = self._match(line)
        return match if match is None or isinstance(match, Rejected) else self._from_match(match)

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number at the end of the output may lack digits, so one is valid only if text follows."""
        match = self._match(line)
        if match is None or isinstance(match, Rejected):
            return match
        last = max(match.end(name) for name in match.re.groupindex)
        return self._from_match(match) if last < len(match.string.rstrip()) else _CUT_OFF

    def _match(self, line: bytes) -> regex.Match[str] | Rejected | None:
        """The first match. After several timeouts no line is searched any more."""
        if self._timeouts >= MAX_TIMEOUTS:
            return None
        text = printed_text(line)
        for number, pattern in enumerate(self._patterns, 1):
            try:
                match = pattern.search(text, timeout=MATCH_SECONDS)
            except TimeoutError:
                self._timeouts += 1
                last = "; no more lines are searched" if self._timeouts == MAX_TIMEOUTS else ""
                reason = f"metrics pattern {number} needs more than {MATCH_SECONDS * 1000:.0f} ms for it"
                return Rejected(f"{reason}; write it without repeats inside repeats{last}")
            if match is not None:
                return match
        return None

    def _from_match(self, match: regex.Match[str]) -> Parsed:
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        values = {name: self._value(name, text) for name, text in groups.items()}
        if self._step is not None:
            return _with_step(values, groups.get(self._step, ""))
        if "step" not in groups and "epoch" in groups and "iter" in groups:
            epoch, place = _number(groups["epoch"]), _number(groups["iter"])
            total = _number(groups["total"]) if "total" in groups else None
            if not (isinstance(epoch, int) and isinstance(place, int) and isinstance(total, int | None)):
                return Rejected("epoch, iter and total are not whole numbers")
            values.pop("total", None)
            count = self._epochs[self._patterns.index(match.re)]
            return _with_step(values, str(count.step(epoch, place, total)))
        return _with_step(values, next((groups[name] for name in STEP_NAMES if name in groups), ""))

    def _value(self, name: str, text: str) -> int | float | str:
        number = _number(text)
        if number is not None:
            factor = self._units.get(name)
            return number if factor is None else number * factor
        return _number_with_unit(name, text)


class CsvLines(LineFormat):
    """A CSV file with a header and a column for the step: ``step``, else one of STEP_NAMES. An
    empty cell is an unknown value."""

    has_header = True

    def __init__(self, step: str | None = None) -> None:
        self._step_names = STEP_NAMES if step is None else (step,)
        self._header = CsvHeader.of(b"", self._step_names)

    def begin(self, header: bytes, attempts_first: bytes = b"") -> None:
        self._header = CsvHeader.of(header, self._step_names)
        if attempts_first and self._header.is_another(_cells(attempts_first)):
            self._header = CsvHeader.of(attempts_first, self._step_names)

    def parse(self, line: bytes) -> Parsed:
        stripped = line.strip()
        header = self._header
        # A script that appends to its file with each attempt repeats the header.
        if not stripped or stripped == header.text:
            return None
        cells = _cells(line)
        has_open_quotes = line.count(b'"') % 2
        if cells is None and not has_open_quotes:
            return Rejected(_other_form(header.text) or "not CSV text")
        if cells is None or (has_open_quotes and len(cells) != len(header.columns)):
            return Rejected("a line break inside quotes, which gputui does not read")
        if not header.fits(cells) and header.is_another(cells):
            self._header = CsvHeader.of(line, self._step_names)
            return None
        if header.step is None:
            return Rejected(_other_form(header.text) or f"the header names no column {' or '.join(self._step_names)}")
        if len(cells) != len(header.columns):
            return Rejected(f"{len(cells)} cells under a header of {len(header.columns)}")
        values = {name: _value(cell) for name, cell in zip(header.columns, cells, strict=True) if name and cell}
        return _with_step(values, cells[header.step])

    def parse_unterminated(self, line: bytes) -> Parsed:
        header = self._header
        parsed = super().parse_unterminated(line)
        self._header = header
        return _CUT_OFF if isinstance(parsed, ParsedLine) else parsed


class CsvHeader(NamedTuple):
    """The names of a CSV file's columns.

    Attributes:
        step: the column of the step; None if there is none.
        step_names: the names of which one is the step's, in lower case unless the profile names it.
    """

    text: bytes
    columns: Sequence[str]
    step: int | None
    step_names: Sequence[str]

    @classmethod
    def of(cls, line: bytes, step_names: Sequence[str]) -> CsvHeader:
        columns = _cells(line) or []
        names = columns if step_names is not STEP_NAMES else [name.lower() for name in columns]
        step = next((names.index(name) for name in step_names if name in names), None)
        return cls(line.strip(), columns, step, step_names)

    def fits(self, cells: Sequence[str]) -> bool:
        """Whether a line has the columns of this header, and its step begins like a number."""
        if self.step is None or len(cells) != len(self.columns):
            return False
        first = cells[self.step][:1]
        return first.isdigit()

    def is_another(self, cells: Sequence[str] | None) -> bool:
        """Whether a line is another header: it names the step, and has no number."""
        if cells is None:
            return False
        names = cells if self.step_names is not STEP_NAMES else [cell.lower() for cell in cells]
        return not {*self.step_names}.isdisjoint(names) and all(_number(cell) is None for cell in cells)


def _other_form(header: bytes) -> str | None:
    """The form of a file whose header is no line of comma-separated UTF-8, as the reason that it is
    refused."""
    if header.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in header:
        return "the file is UTF-16; gputui reads UTF-8"
    other = next((name for sign, name in ((b";", "semicolons"), (b"\t", "tabs")) if sign in header), None)
    return None if other is None or b"," in header else f"the columns are separated by {other}; gputui reads commas"


def line_format(name: str, reading: Reading = DEFAULT_READING) -> LineFormat:
    """The format of a name: ``jsonl``, ``csv``, or ``stdout`` with its patterns.

    Raises ValueError for another name, and as OutputPatterns does.
    """
    if name == "jsonl":
        return JsonLines(reading.step)
    if name == "csv":
        return CsvLines(reading.step)
    if name == "stdout":
        return OutputPatterns(reading.patterns, reading.step, reading.units, reading.epochs)
    raise ValueError(f"unknown metrics source {name!r}; known are jsonl, csv, stdout and hf")


def compile_pattern(number: int, text: str, step: str | None = None) -> regex.Pattern[str]:
    """Compile the ``number``-th pattern of a profile. Raises ValueError if it does not compile or
    has no step."""
    # Imported here: it takes 14 ms, and most commands need no pattern.
    import regex

    try:
        # Only the standard syntax is accepted, without the extensions of regex.
        re.compile(text)
        pattern = regex.compile(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"metrics pattern {number} is no regular expression: {error}") from error
    names = STEP_NAMES if step is None else (step,)
    if not any(name in pattern.groupindex for name in names):
        raise ValueError(f"metrics pattern {number} has no group named {' or '.join(names)}")
    return pattern


def printed_text(line: bytes) -> str:
    """The part of a printed line that patterns see: its beginning, without escape sequences."""
    text = line[: 4 * MATCHED_CHARACTERS].decode("utf-8", "replace")
    if "\x1b" in text:
        text = SEQUENCE.sub("", text)
    return text[:MATCHED_CHARACTERS]


def _with_step(values: dict[str, Any], step_text: str) -> ParsedLine | Rejected:
    step = _number(step_text)
    if step is None:
        return Rejected("step is not a whole number")
    metrics = {name: value for name, value in values.items() if name.lower() not in STEP_NAMES}
    return parse_values({"step": step, **metrics})


def _value(text: str) -> int | float | str:
    number = _number(text)
    return text if number is None else number


def _number_with_unit(name: str, text: str) -> float | str:
    """``17.4ms``, ``1.2k``, ``35.1it/s`` or ``1.5s/it`` in seconds, bytes or plain counts, else the
    text. Progress bars switch from steps per second to seconds per step when they are slow: a name
    that ends in "time" is a time, every other a rate."""
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
    r"""Parse a number with thousands separators, and the comma or percent sign that ``\S+`` includes behind it."""
    text = text.strip().rstrip(_TRAILING)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
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
