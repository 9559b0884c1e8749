"""Formats of metrics lines: JSON lines, the output of a program, CSV.

A format parses one line at a time and keeps only the header of its file, so the result never
depends on how the bytes arrived.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from gputui.core.text import SEQUENCE
from gputui.metrics.contract import Parsed, ParsedLine, Rejected, excerpt, parse_line, parse_values
from gputui.store.metrics.queries import NOT_METRICS, as_float

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


class Reading(Struct, frozen=True):
    """How a profile reads lines: ``patterns`` for printed lines, the name of an unusual ``step``,
    factors of values by name, the outputs of a rank to search, and what earlier readers have
    learned (`EpochCount`)."""

    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = msgspec.field(default_factory=dict)
    streams: tuple[str, ...] = ("stdout",)
    epochs: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)


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
    total, or does not begin again with the next epoch, is a step already. ``learned`` is the length
    of an epoch (0 for such a place) and the first epoch; None before one ends.
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
    """Metrics in the output of a program, found by regular expressions with named groups, of which
    the first that matches a line counts.

    Each needs a step: the group ``step`` of the profile, else ``step``, else ``epoch`` and ``iter``
    together (see `EpochCount`), else ``iter`` or ``iteration``. Raises ValueError for a bad
    pattern, or none.
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
        values: dict[str, int | float | str] = {}
        for name, text in groups.items():
            number = _number(text)
            values[name] = _number_with_unit(name, text) if number is None else number * self._units.get(name, 1)
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
        values = {}
        for name, cell in zip(self._columns, cells, strict=True):
            if name and cell:
                number = _number(cell)
                values[name] = cell if number is None else number
        return _with_step(values, cells[self._step])

    def parse_unterminated(self, line: bytes) -> Parsed:
        header = self._header
        parsed = super().parse_unterminated(line)
        self._use(header)
        return _CUT_OFF if isinstance(parsed, ParsedLine) else parsed

    def _use(self, header: bytes) -> None:
        self._header, self._columns = header.strip(), _cells(header) or []
        self._step = self._step_column(self._columns)

    def _step_column(self, columns: Sequence[str]) -> int | None:
        if self._step_name is not None:
            return columns.index(self._step_name) if self._step_name in columns else None
        names = [name.lower() for name in columns]
        return next((names.index(name) for name in STEP_NAMES if name in names), None)

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Whether a line is a header: it names the step, and has no number."""
        return self._step_column(cells) is not None and all(_number(cell) is None for cell in cells)


def line_format(name: str, reading: Reading = DEFAULT_READING) -> LineFormat:
    """The format of a name: ``jsonl``, ``csv``, or ``stdout`` with its patterns. Raises ValueError."""
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


# --- a profile's metrics tried on an old log ------------------------------------------------------

NEAR_SHOWN = 3
# A short beginning of a pattern matches many lines by chance; this share and number of literals do
# not.
_NEAR_SHARE = 0.3
_NEAR_LITERAL = 3
_NEAR_LINES = 2000


class NearMatch(NamedTuple):
    """A line that matches the beginning of a pattern: ``fits`` is that part, ``expected`` the rest
    of the pattern, ``found`` the rest of the line."""

    number: int
    text: str
    fits: str
    expected: str
    found: str


@dataclass(slots=True)
class Trial:
    """The result of a log. ``points`` are the (step, value) of each metric in the order of lines;
    ``backwards`` is the first (line number, step before, step) at which steps decrease."""

    lines: int = 0
    taken: int = 0
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    total_steps: float | None = None
    backwards: tuple[int, int, int] | None = None
    near: list[NearMatch] = field(default_factory=list)

    def add(self, number: int, step: int | None, values: Mapping[str, Any]) -> None:
        """Add a line."""
        self.taken += 1
        if step is None:
            return
        if self.last_step is not None and step < self.last_step and self.backwards is None:
            self.backwards = (number, self.last_step, step)
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step, self.total_steps = step, as_float(values.get("total_steps"))
        for name, value in values.items():
            if name not in NOT_METRICS and (as_number := as_float(value)) is not None:
                self.points.setdefault(name, []).append((step, as_number))

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "metrics_lines": self.taken,
            "rejected": [{"line": number, "reason": why, "text": text} for number, why, text in self.rejected],
            "first_step": self.first_step,
            "last_step": self.last_step,
            "steps_go_back_at_line": None if self.backwards is None else self.backwards[0],
            "metrics": [
                {"name": name, "count": len(found), "first": found[0][1], "last": found[-1][1]}
                for name, found in self.points.items()
            ],
            "near": [
                {"line": near.number, "text": near.text, "fits": near.fits, "expected": near.expected}
                for near in self.near
            ],
        }


def try_log(content: bytes, line_format: LineFormat, patterns: Sequence[str] = ()) -> Trial:
    """Parse a whole log as it would have been parsed while it was written."""
    if line_format.breaks_at_return:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = content.split(b"\n")
    if line_format.has_header:
        line_format.begin(lines[0])
    trial = Trial()
    unmatched: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        trial.lines += 1
        parsed = line_format.parse(line)
        if isinstance(parsed, ParsedLine):
            trial.add(number, parsed.step, parsed.values)
        elif isinstance(parsed, Rejected):
            trial.rejected.append((number, parsed.reason, excerpt(line)))
        elif len(unmatched) < _NEAR_LINES:
            unmatched.append((number, printed_text(line)))
    trial.near = _near_matches(patterns, unmatched)
    return trial


def _near_matches(patterns: Sequence[str], lines: Sequence[tuple[int, str]]) -> list[NearMatch]:
    """Of (number, text) lines without a match, those that match most of a pattern: the best first,
    one for each place at which a pattern stops matching."""
    best: dict[str, tuple[float, NearMatch]] = {}
    for pattern in patterns:
        beginnings = list(_beginnings(pattern))
        for number, text in lines:
            fits = ((part, match) for part, beginning in beginnings if (match := beginning.search(text)))
            part, match = next(fits, ("", None))
            share = len(part) / len(pattern)
            if match is not None and share > best.get(part, (0.0, None))[0]:
                found = text[match.end() :].strip()[:40]
                best[part] = (share, NearMatch(number, text.strip()[:160], part, pattern[len(part) :], found))
    ranked = sorted(best.values(), key=lambda pair: -pair[0])
    return [near for _, near in ranked[:NEAR_SHOWN]]


def _beginnings(pattern: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The beginnings of a pattern that compile and have enough literal text, longest first."""
    for end in range(len(pattern) - 1, 0, -1):
        part = pattern[:end]
        literal = re.sub(r"\(\?P<\w+>|\\.|[^A-Za-z0-9:=]", "", part)
        if end / len(pattern) < _NEAR_SHARE or len(literal) < _NEAR_LITERAL:
            return
        try:
            yield part, re.compile(part)
        except (re.error, RecursionError, OverflowError):
            continue
