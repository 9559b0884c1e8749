"""The line of metrics that a training script writes by ``gputui.log``. Standard library only: it is quick to import."""

from __future__ import annotations

import json
import operator
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import SupportsFloat, SupportsIndex

MAX_STEP = 2**53 - 1
"""The largest step of a line: larger integers are not exact in other JSON readers, nor safe in SQLite's arithmetic."""

RESERVED_NAMES = frozenset({"step", "time", "rank", "event", "phase"})
"""The names with which a line describes itself: no metric has one of them."""


def log(values: Mapping[str, SupportsFloat], *, step: SupportsIndex) -> None:
    """Append a line of metrics to the file of the run; outside a run of gputui, do nothing.

    Every rank and thread may call it. A file that cannot be written is a warning: no training ends for it.

    Args:
        values: numbers by name, also scalars of torch and numpy.
        step: the step in the whole run.

    Raises:
        TypeError: the values are no mapping, a name not text, a value not a number, or the step not a whole number.
        ValueError: a name is one of `RESERVED_NAMES`, or the step negative or above `MAX_STEP`.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"values are numbers by name such as {{'loss': 0.5}}, not {type(values).__name__}")
    line = {
        **{_name(name): _number(name, value) for name, value in values.items()},
        "step": _step(step),
        "time": time.time(),
    }
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", ""))
    if rank.isdecimal():
        line["rank"] = int(rank)
    path = os.environ.get("GPUTUI_METRICS")
    if path is None:
        return
    # One write to a file opened with O_APPEND, so that lines of ranks and threads never mix.
    data = f"{json.dumps(line)}\n".encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        text = f"gputui.log: {path} cannot be written: {error.strerror}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a metric is text, not {name!r}")
    if name in RESERVED_NAMES:
        raise ValueError(f"no metric can be called {name!r}: gputui uses {', '.join(sorted(RESERVED_NAMES))} itself")
    return name


def _step(step: SupportsIndex) -> int:
    number = operator.index(step)
    if not 0 <= number <= MAX_STEP:
        raise ValueError(f"the step is from 0 to {MAX_STEP}, not {number}")
    return number


def _number(name: str, value: object) -> float:
    """The value as a number. Raises TypeError."""
    if isinstance(value, int):
        return value
    if isinstance(value, SupportsFloat):
        # A tensor of several values raises an error of its library's own.
        with suppress(Exception):
            return float(value)
    raise TypeError(f"the metric {name!r} is a number, not {type(value).__name__}")
