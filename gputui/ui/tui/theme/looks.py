"""The style keys of lines: the role and the attributes of each, in all themes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

SELECTED = "@"
"""Suffix of a key in the row under the cursor."""


class Look(Struct, frozen=True):
    """The role and the attributes of a style key."""

    role: str = "text"
    bold: bool = False
    underline: bool = False
    reverse: bool = False


LOOKS: Final[Mapping[str, Look]] = {
    "text": Look(),
    "dim": Look("dim"),
    "stale": Look("dim"),
    "title": Look(bold=True),
    "label": Look(bold=True),
    "head": Look("dim"),
    "rule": Look("rule"),
    "axis": Look("dim"),
    "marker": Look("warn"),
    "good": Look("good"),
    "warn": Look("warn"),
    "bad": Look("bad", bold=True),
    "accent": Look("accent"),
    "cursor": Look("accent", bold=True),
    "key": Look(bold=True),
    "bar": Look("accent"),
    "bar2": Look("second"),
    "power": Look("series.3"),
    "heat": Look("series.1"),
    "history": Look("history"),
    "track": Look("track"),
    # Three steps of load, which bold and faint text tell apart without colours.
    "load.0": Look("dim"),
    "load.1": Look("accent"),
    "load.2": Look("good", bold=True),
    "memory.0": Look("dim"),
    "memory.1": Look("second"),
    "memory.2": Look("series.2", bold=True),
    "input": Look(underline=True),
    "caret": Look(reverse=True),
    "selected": Look(reverse=True),
    "tab": Look(bold=True, underline=True),
    **{f"series.{number}": Look(f"series.{number}") for number in range(6)},
    "shadow": Look("dim"),
}
