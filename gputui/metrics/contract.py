"""The metrics contract: what one line says, decided without any I/O.

A line is one JSON object, ``{"step": int, "time": float?, "rank": int?, "<name>": number, …}``. Whatever else arrives
is answered with a reason, never with an exception.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from gputui.redaction import BY_LOOK, Redactor

MAX_LINE_BYTES = 1 << 20
MAX_INTEGER = 2**63 - 1
EXCERPT_CHARACTERS = 200

# SQLite's JSON functions refuse what is nested deeper than 1000 levels (sqlite.org/json1.html, "JSON nesting depth"),
# and one such row would fail every query that looks into it.
MAX_DEPTH = 200

# Beyond it no calendar knows the date (9999-12-31): such a time is in another unit, or no time.
_END_OF_TIME_SECONDS = 253_402_300_800.0
_SURROGATE = re.compile("[\ud800-\udfff]")
_CLOSING_BRACE = 0x7D


class ParsedLine(NamedTuple):
    """What is stored of a line. ``time`` is unix seconds; ``data`` is standard JSON; ``values`` the same, decoded."""

    step: int | None
    time: float | None
    rank: int | None
    data: str
    values: Mapping[str, Any]


class Rejected(NamedTuple):
    """A line that is set aside, and why, in a few words."""

    reason: str


Parsed = ParsedLine | Rejected | None
"""The answer to a line; None if it says nothing and is no fault either."""

TOO_LONG = Rejected(f"longer than {MAX_LINE_BYTES >> 20} MiB")
_NO_OBJECT = Rejected("not a JSON object")
_TOO_DEEP = Rejected(f"nested deeper than {MAX_DEPTH} levels")


def parse_line(line: bytes) -> Parsed:
    """One line of a JSONL file, without its newline; None if it is blank.

    NaN and infinities become the strings "NaN", "Infinity" and "-Infinity". Never raises.
    """
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_uncommon(line)
    if type(values) is not dict:
        return _NO_OBJECT
    if len(line) > 2 * MAX_DEPTH and _may_be_deep(line) and _is_too_deep(values):
        return _TOO_DEEP
    # Kept as it was written, but for escapes: SQLite before 3.45 does not find a key that is written with one.
    text = orjson.dumps(values).decode() if b"\\" in line else line.decode()
    return _accept(values, text if line[-1] == _CLOSING_BRACE else text.strip())


def parse_values(values: Mapping[str, Any]) -> ParsedLine | Rejected:
    """The same for a line that came in another format and was decoded already."""
    if _is_too_deep(values):
        return _TOO_DEEP
    standard = _standard(values)
    return _accept(standard, orjson.dumps(standard).decode())


def cut_off(parsed: Parsed) -> Parsed:
    """The answer to a last line that never got its newline: complete it counts, else its writer was stopped in it."""
    return Rejected(f"cut off: {parsed.reason}") if isinstance(parsed, Rejected) else parsed


def excerpt(line: bytes, redactor: Redactor = BY_LOOK) -> str:
    """The beginning of a line in visible characters and without secrets, however it began."""
    # Looked at further than is kept, so that none is cut before it is known.
    head = line.removesuffix(b"\r")[: 4 * EXCERPT_CHARACTERS]
    text = redactor.text(head.decode("utf-8", "backslashreplace"))[:EXCERPT_CHARACTERS]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text[:EXCERPT_CHARACTERS]


def _accept(values: Mapping[str, Any], data: str) -> ParsedLine | Rejected:
    step = values.get("step")
    if type(step) is not int:
        if step is None:
            if "event" not in values and "phase" not in values:
                return Rejected("no step")
        elif type(step) is float and step.is_integer():
            step = int(step)
        else:
            return Rejected("step is not a whole number")
    if step is not None and not 0 <= step <= MAX_INTEGER:
        return Rejected("step is out of range")
    rank = values.get("rank")
    if rank is not None and (type(rank) is not int or not 0 <= rank <= MAX_INTEGER):
        return Rejected("rank is not a whole number")
    time = values.get("time")
    if type(time) is int:
        time = float(time)
    if type(time) is not float or not 0.0 <= time < _END_OF_TIME_SECONDS:
        time = None
    return ParsedLine(step, time, rank, data, values)


def _parse_uncommon(line: bytes) -> Parsed:
    """A line that strict JSON refuses: blank, padded, with NaN or lone surrogates in it, or broken."""
    content = line.lstrip(b"\0")
    if not content.strip(b" \t\r\0"):
        return Rejected("NUL bytes, as a power cut leaves them") if b"\0" in line else None
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
    return parse_values(values) if isinstance(values, dict) else _NO_OBJECT


def _may_be_deep(line: bytes) -> bool:
    return line.count(b"[") + line.count(b"{") > MAX_DEPTH


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        following: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                following += [child for child in item.values() if isinstance(child, dict | list)]
            elif isinstance(item, list):
                following += [child for child in item if isinstance(child, dict | list)]
        if not following:
            return False
        level = following
    return True


def _standard(value: Any) -> Any:
    """The same value in standard JSON: no NaN or infinity tokens, no lone surrogates, no integers beyond 64 bits."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
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
            return "Infinity" if value > 0 else "-Infinity"
    return value
