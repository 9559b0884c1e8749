"""Values of metrics as scripts write them, read once for every source: numbers, numbers within text, and nulls
that stand for NaN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gputui.store.metrics.stored_lines import NON_FINITE, NOT_METRICS, NULL_NAN, as_float

# Factors that convert units to seconds, bytes and plain counts.
UNITS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12,
    "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip

MAX_INTEGER = 2**63 - 1

NUMBERS = frozenset({int, float})
"""The types of a line in which every value is a number."""

_TRAILING = ",;:%)]}"
_DIGITS = r"[-+]?(?:\d++\.?\d*+|\.\d+)(?:[eE][-+]?\d+)?"
_GROUPED = r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?"
_THOUSANDS = re.compile(rf"{_GROUPED}|[-+]?[1-9]\d{{0,2}}(?:_\d{{3}})+(?:\.\d*)?")
_WITH_UNIT = re.compile(rf"({_DIGITS})\s?([A-Za-zµ]+)(?:/([a-z]+))?")
# The number that a text begins with: a mean in brackets, a deviation or words may follow, with or without a space. A
# unit may follow at once. A date, a version or a fraction is no number.
_LEADING = re.compile(
    rf"(?:(?P<digits>{_GROUPED}|{_DIGITS})(?=[A-Za-zµ°%]*$|[,;:]?\s|[(\[{{±|]|\+/?-)"
    r"|(?P<word>[-+]?(?:nan|inf(?:inity)?))(?=[,;:]?\s|[(\[{±|]|\+/?-))",
    re.IGNORECASE,
)
# Whether a text may begin with a number at all: most do not, and are told apart at once.
_MAY_LEAD = re.compile(r"\s*[-+]?\.?(?:\d|nan\b|inf(?:inity)?\b)", re.IGNORECASE)
# As PyTorch, NumPy and JAX write a number of theirs: ``tensor(0.51, device='cuda:0')``.
_WRAPPED = re.compile(rf"[A-Za-z_][\w.]*\(\s*({_DIGITS}|[-+]?(?:nan|inf(?:inity)?))\s*[,)]", re.IGNORECASE)
_SECOND = frozenset({"s", "sec"})
# Their text is a name.
_TEXTS = frozenset({"event", "phase"})
_MOST_CHARACTERS = 200  # a text that names something is shorter

_LEAST_NUMBERS = 2  # one number may have been the first of a metric that is written seldom
# A script may invent names without end.
_MOST_NAMES = 500
_MOST_SHAPES = 32  # a script writes a handful of kinds of lines


def printed_number(text: str) -> int | float | None:
    r"""Parse a number with thousands separators (``1,234``, ``1_234``), and the comma or percent sign that ``\S+``
    includes behind it. A whole number beyond 64 bits is a float, as it is stored: arithmetic cannot overflow."""
    text = text.strip().rstrip(_TRAILING)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "").replace("_", "")
    if "_" in text:
        # Python reads it as a number wherever the underscore is.
        return None
    try:
        number = int(text)
    except ValueError:
        return _decimal(text)
    if abs(number) <= MAX_INTEGER:
        return number
    return float(text)


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def number_in_text(name: str, text: str) -> int | float | None:
    """The number that a text is or begins with, or that it wraps; None if there is none.

    >>> number_in_text("loss", "0.51(0.52)"), number_in_text("t", "17.4ms"), number_in_text("loss", "tensor(0.51)")
    (0.51, 0.0174, 0.51)

    Args:
        name: Tells times from rates, see `_with_unit`.
    """
    if _MAY_LEAD.match(text) is None:
        wrapped = _WRAPPED.match(text.strip())
        if wrapped is None:
            return None
        return printed_number(wrapped[1])
    number = printed_number(text)
    if number is None:
        number = _with_unit(name, text)
    if number is None and (leading := _LEADING.match(text.strip())):
        number = printed_number(leading[0])
    return number


def read_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a line, with the numbers that its texts begin with in their place."""
    numbers = {}
    for name, value in values.items():
        if type(value) is str and name not in _TEXTS and value not in NON_FINITE and len(value) <= _MOST_CHARACTERS:
            number = number_in_text(name, value)
            if number is not None:
                numbers[name] = number
    if numbers:
        return {**values, **numbers}
    return values


def _with_unit(name: str, text: str) -> float | None:
    """``17.4ms``, ``1.2k``, ``35.1it/s`` or ``1.5s/it`` in seconds, bytes or plain counts. Progress bars switch from
    steps per second to seconds per step when they are slow: a name that ends in "time" is a time, every other a
    rate."""
    match = _WITH_UNIT.fullmatch(text.strip().rstrip(_TRAILING))
    if match is None:
        return None
    number = float(match[1])
    unit = match[2]
    per = match[3]
    if per is None or (per in _SECOND and unit in UNITS):
        if unit in UNITS:
            return number * UNITS[unit]
        return None
    is_time = name.endswith("time")
    if per in _SECOND:
        if not is_time:
            return number
        if number:
            return 1 / number
        return None
    if unit not in ("s", "ms", "us"):
        return None
    seconds = number * UNITS[unit]
    if is_time:
        return seconds
    if seconds:
        return 1 / seconds
    return None


class NullMeanings:
    """Tells the nulls of one rank's lines that stand for NaN, as orjson, pandas and JavaScript write it, from those
    of a value that was not measured.

    A null stands for NaN where its name had numbers before, in lines with the same other names, and where it is not
    a gap: no longer than twice the longest run of nulls that a number has ended.
    """

    def __init__(self) -> None:
        self._shapes: dict[frozenset[str], None] = {}
        self._counts: dict[str, int] = {}
        self._nulls: dict[str, int] = {}
        self._longest: dict[str, int] = {}
        # A line after which another one with the same names, and no null, shows nothing new.
        self._usual: Mapping[str, Any] | None = None

    def read(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take a line, and return it with NaN, in its stored form, for the nulls that stand for it.
        Cheap for a line without a null that has the names of the line before."""
        has_null = None in values.values()
        if self._usual is not None and not has_null and values.keys() == self._usual.keys():
            return values
        self._usual = None
        measured = frozenset(name for name, value in values.items() if as_float(value) is not None) - NOT_METRICS
        nulls = [name for name, value in values.items() if value is None and name not in NOT_METRICS]
        if measured not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            self._shapes[measured] = None
        for name in measured:
            if name not in self._counts and len(self._counts) >= _MOST_NAMES:
                continue
            self._counts[name] = self._counts.get(name, 0) + 1
            if run := self._nulls.pop(name, 0):
                self._longest[name] = max(run, self._longest.get(name, 0))
        if not has_null and all(self._counts.get(name, 0) >= _LEAST_NUMBERS for name in measured):
            self._usual = values
        not_numbers = {name: NULL_NAN for name in nulls if self._is_nan(name, measured)}
        if not_numbers:
            return {**values, **not_numbers}
        return values

    def _is_nan(self, name: str, measured: frozenset[str]) -> bool:
        """Count a null of a name in a line that measured others, and tell if it stands for NaN."""
        is_usual = name not in self._counts or any(name in shape and measured <= shape for shape in self._shapes)
        if not is_usual:
            return False
        if name not in self._nulls and len(self._nulls) >= _MOST_NAMES:
            return False
        run = self._nulls[name] = self._nulls.get(name, 0) + 1
        return self._counts.get(name, 0) >= _LEAST_NUMBERS and run > 2 * self._longest.get(name, 0)


class NullReader:
    """The `NullMeanings` of each rank of a source. ``load`` returns its newest stored lines, oldest first, as (rank,
    values): it is called for the first line, and again after `forget`."""

    def __init__(self, load: Callable[[], Iterable[tuple[int | None, Mapping[str, Any]]]] = tuple) -> None:
        self._load = load
        self._ranks: dict[int | None, NullMeanings] | None = None

    def of(self, rank: int | None) -> NullMeanings:
        """Those of one rank. Raises what ``load`` raises."""
        if self._ranks is None:
            lines = self._load()
            self._ranks = {}
            for line_rank, values in lines:
                self.of(line_rank).read(values)
        meanings = self._ranks.get(rank)
        if meanings is None:
            meanings = self._ranks[rank] = NullMeanings()
        return meanings

    def forget(self) -> None:
        """Forget all lines, because the newest were not stored."""
        self._ranks = None
