"""Reading JSON that others wrote: a shim, torchrun, or a script that put something else in its place.

What comes out can be stored and shown as it is: no number that is none or that no column holds, no half of a surrogate
pair (a file name that is not UTF-8 leaves them in a Python message), nothing nested too deeply, nothing endless.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gputui.regular_files import read_regular

MAX_BYTES = 1 << 20
# What an SQLite column holds: https://www.sqlite.org/datatype3.html
_WHOLE = range(-(1 << 63), 1 << 63)
# The year 9999; no later time can be written as a date.
_LATEST = 253_402_300_799.0


def read_foreign_json(path: Path, most_bytes: int = MAX_BYTES) -> Any:
    """The value in a regular file. Raises OSError, also for anything that is no file (a FIFO would be waited for), and
    ValueError if there is no JSON in it or far too much."""
    raw = read_regular(path, most_bytes)
    try:
        return _storable(json.loads(raw.decode("utf-8", "replace")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def time_in(value: Any) -> float | None:
    """UTC unix seconds, or None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= _LATEST else None


def _storable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode("utf-8")
        case bool():
            return value
        case int():
            return value if value in _WHOLE else None
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_storable(item) for item in value]
        case dict():
            return {_storable(name): _storable(item) for name, item in value.items()}
    return value
