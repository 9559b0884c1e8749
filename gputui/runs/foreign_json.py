"""Read JSON of other programs so that it can be stored and shown: no NaN, no integer beyond an
SQLite column, no lone surrogate, no excessive nesting or size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gputui.core.files import read_regular

MAX_BYTES = 1 << 20  # a hundred times what any of these files has
# The integers of an SQLite column: https://www.sqlite.org/datatype3.html
_WHOLE = range(-(1 << 63), 1 << 63)
# The end of the year 9999, the last time that datetime can represent.
_LATEST = 253_402_300_799.0


def read_foreign_json(path: Path, most_bytes: int = MAX_BYTES) -> Any:
    """The value in a regular file. Raises OSError, also for anything else than a regular file (a
    FIFO would block), and ValueError if it is no JSON or too large."""
    raw = read_regular(path, most_bytes)
    try:
        return _storable(json.loads(raw.decode("utf-8", "replace")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def time_in(value: Any) -> float | None:
    """UTC unix seconds, or None if the value is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if 0 < value <= _LATEST:
        return float(value)
    return None


def _storable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode("utf-8")
        case int():
            if value in _WHOLE:
                return value
            return None
        case float():
            if math.isfinite(value):
                return value
            return None
        case list():
            return [_storable(item) for item in value]
        case dict():
            return {_storable(name): _storable(item) for name, item in value.items()}
    return value
