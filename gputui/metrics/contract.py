"""The metrics contract: what one line means. No I/O.

A line is one JSON object, ``{"step": int, "time": float?, "rank": int?, "<name>": number, …}``. Any
other input is rejected with a reason, never with an exception.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.core.training_log import MAX_STEP
from gputui.metrics.values import MAX_INTEGER, NUMBERS, read_values

MAX_LINE_BYTES = 1 << 20  # a thousand times a long line; more is no line, but data without newlines
EXCERPT_CHARACTERS = 200  # enough to find the line in its file

# Each value that is no number is looked at for secrets; a turn of the agent's loop has 50 ms.
MAX_VALUES = 8192

# SQLite's JSON functions fail beyond 1000 levels (sqlite.org/json1.html, "JSON nesting depth"), and
# one such row would fail every query that reads it.
MAX_DEPTH = 200

# 9999-12-31. A larger number is in another unit, or no time.
_END_OF_TIME_SECONDS = 253_402_300_800.0
_SURROGATE = re.compile("[\ud800-\udfff]")
_CLOSING_BRACE = 0x7D


class ParsedLine(NamedTuple):
    """The stored content of a line.

    Attributes:
        step: None for an event that is of no step.
        time: Unix seconds, None if the line has none.
        rank: None if the line names none.
        data: The line as standard JSON.
        values: The same, decoded.
        is_numeric: All of them are numbers.
    """

    step: int | None
    time: float | None
    rank: int | None
    data: str
    values: Mapping[str, Any]
    is_numeric: bool


class Rejected(NamedTuple):
    """A rejected line and the reason."""

    reason: str


Parsed = ParsedLine | Rejected | None
"""The result of a line; None if it is neither metrics nor an error."""


TOO_LONG = Rejected(f"longer than {MAX_LINE_BYTES >> 20} MiB")
_NO_OBJECT = Rejected("not a JSON object")
_TOO_DEEP = Rejected(f"nested deeper than {MAX_DEPTH} levels")
_TOO_MANY = Rejected(f"more than {MAX_VALUES} values")


def parse_line(line: bytes) -> Parsed:
    """Parse a line of a JSONL file without its newline; None if it is blank. NaN and infinities
    become strings, and strings that begin with a number become numbers (`read_values`).

    >>> parse_line(b'{"step": 3, "loss": NaN, "speed": "1.2k"}').data
    '{"step":3,"loss":"NaN","speed":1200.0}'
    """
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_uncommon(line)
    if type(values) is not dict:
        return _NO_OBJECT
    may_be_deep = len(line) > 2 * MAX_DEPTH and line.count(b"[") + line.count(b"{") > MAX_DEPTH
    may_be_many = len(line) > 2 * MAX_VALUES and line.count(b",") >= MAX_VALUES
    if (may_be_deep or may_be_many) and (refusal := _refusal(values)) is not None:
        return refusal
    # Stored as written, except for escapes: SQLite before 3.45 does not find a key that contains
    # one.
    text = orjson.dumps(values).decode() if b"\\" in line else line.decode()
    if line[-1] != _CLOSING_BRACE:
        text = text.strip()
    return _accept(values, text)


def parse_values(values: Mapping[str, Any]) -> ParsedLine | Rejected:
    """Parse a decoded line of another format, as `parse_line`."""
    is_numeric = NUMBERS.issuperset(map(type, values.values())) and len(values) <= MAX_VALUES
    if is_numeric and all(-MAX_INTEGER <= value <= MAX_INTEGER for value in values.values()):
        # Finite numbers of 64 bits, as in most lines. A name may be no text in UTF-8.
        with suppress(TypeError):
            return _accept(values, orjson.dumps(values).decode())
    if (refusal := _refusal(values)) is not None:
        return refusal
    standard = _standard(values)
    return _accept(standard, orjson.dumps(standard).decode())


def excerpt(line: bytes, redactor: Redactor = BY_LOOK) -> str:
    """The beginning of a line in printable characters, without secrets."""
    # Redact a longer part than is kept, so that a secret is not cut before it is recognised.
    head = line.removesuffix(b"\r")[: 4 * EXCERPT_CHARACTERS]
    text = redactor.text(head.decode("utf-8", "backslashreplace"))[:EXCERPT_CHARACTERS]
    if not text.isprintable():
        text = "".join(map(_printable, text))
    return text[:EXCERPT_CHARACTERS]


def _accept(values: Mapping[str, Any], data: str) -> ParsedLine | Rejected:
    is_numeric = NUMBERS.issuperset(map(type, values.values()))
    if not is_numeric and (with_numbers := read_values(values)) is not values:
        values = _standard(with_numbers)
        data = orjson.dumps(values).decode()
        is_numeric = NUMBERS.issuperset(map(type, values.values()))
    step = values.get("step")
    if type(step) is not int:
        if step is None:
            if "event" not in values and "phase" not in values:
                return Rejected("no step")
        elif type(step) is float and step.is_integer():
            step = int(step)
        else:
            return Rejected("step is not a whole number")
    if step is not None and not 0 <= step <= MAX_STEP:
        return Rejected("step is out of range")
    rank = values.get("rank")
    if rank is not None and (type(rank) is not int or not 0 <= rank <= MAX_INTEGER):
        return Rejected("rank is not a whole number")
    time = values.get("time")
    if type(time) is int:
        time = float(time)
    if type(time) is not float or not 0.0 <= time < _END_OF_TIME_SECONDS:
        time = None
    return ParsedLine(step, time, rank, data=data, values=values, is_numeric=is_numeric)


def _parse_uncommon(line: bytes) -> Parsed:
    """Parse a line that is not strict JSON: blank, padded, with NaN or lone surrogates, or broken."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Rejected("the file is UTF-16; gputui reads UTF-8")
    content = line.lstrip(b"\0")
    if not content.strip(b" \t\r\0"):
        if b"\0" in line:
            return Rejected("NUL bytes, as a power cut leaves them")
        return None
    if len(content) < len(line):
        return parse_line(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Rejected("not UTF-8 text")
    if not text.lstrip(" \t").startswith("{"):
        return _NO_OBJECT
    try:
        values = json.loads(text)
    except RecursionError:
        return _TOO_DEEP
    except json.JSONDecodeError as error:
        return Rejected(f"not JSON: {error.msg}")
    except ValueError:
        return Rejected("not JSON: a number with too many digits")
    if isinstance(values, dict):
        return parse_values(values)
    return _NO_OBJECT


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def _children(value: Mapping[str, Any] | list[Any]) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value


def _refusal(line: Mapping[str, Any]) -> Rejected | None:
    """The reason why a line is refused, if it is nested too deep or has too many values."""
    level: list[Mapping[str, Any] | list[Any]] = [line]
    count = 0
    for _ in range(MAX_DEPTH):
        count += sum(map(len, level))
        if count > MAX_VALUES:
            return _TOO_MANY
        children = itertools.chain.from_iterable(map(_children, level))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return None
    return _TOO_DEEP


def _standard(value: Any) -> Any:
    """The value in standard JSON: no NaN or infinity tokens, no lone surrogates, no integers beyond
    64 bits."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_standard(str(key)): _standard(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_standard(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        try:
            return float(value)
        except OverflowError:
            if value > 0:
                return "Infinity"
            return "-Infinity"
    return value
