"""Values of metrics as scripts write them, read once for every source: numbers, and numbers within text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gputui.store.metrics.stored_lines import NON_FINITE

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
# "0.51", ".5", "-1.5e-3"
_DIGITS = r"[-+]?(?:\d++\.?\d*+|\.\d+)(?:[eE][-+]?\d+)?"
# "1,234.5"
_GROUPED = r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?"
# The same, or "1_234.5"
_THOUSANDS = re.compile(rf"{_GROUPED}|[-+]?[1-9]\d{{0,2}}(?:_\d{{3}})+(?:\.\d*)?")
# "17.4ms", "35.1it/s"
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
