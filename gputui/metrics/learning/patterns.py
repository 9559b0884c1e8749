r"""A learned shape as the pattern of a profile, for a person who wants to change what is read.

In: the shape of "step 12 loss: 0.51 (0.60)". Out: ``step\s*(?P<step>[\d,]+)\s*loss:\s*(?P<loss>[-+.,\w]+)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gputui.metrics.learning.shapes import LearnedColumn, LearnedShape
from gputui.metrics.learning.tokens import Token, tokenize

_COUNT = r"[\d,]+"
_NUMBER = r"[-+.,%\w]+"
_ANYTHING = ".*?"
_COUNTERS = ("step", "iter", "epoch")


def profile_pattern(shape: LearnedShape) -> str | None:
    """The regular expression of a shape's lines, with named groups; None where a profile cannot say it: its lines only
    count, their step is that of other lines, or their form is no regular one."""
    has_own_step = shape.has("step") or shape.has("epoch")
    if shape.is_source or shape.restarts or shape.is_held_out or not has_own_step:
        return None
    pattern = pattern_of(shape.example, shape.columns)
    if re.search(pattern, shape.example) is not None:
        return pattern
    return None


def pattern_of(example: str, columns: Sequence[LearnedColumn]) -> str:
    """The regular expression of lines like an example up to their last column, with a group for each column."""
    roles = {column.role for column in columns}
    groups = {"step": "step", "step_total": "total_steps", "epoch": "epoch"}
    if {"step", "epoch"} <= roles:
        groups = {"step": "iter", "step_total": "total", "epoch": "epoch"}
    elif "epoch" in roles:
        groups = {"epoch": "step", "epoch_total": "total_steps"}
    values = {column.token: column for column in reversed(columns) if not column.role.endswith("_total")}
    totals = {column.token: groups.get(column.role) for column in columns if column.role.endswith("_total")}
    names: set[str] = set()
    pieces = []
    for index, token in enumerate(tokenize(example)[: max(values) + 1]):
        if index and token.gap:
            pieces.append(r"\s*")
        name = _group_name(values.get(index), groups)
        if name in names:
            name = None
        elif name is not None:
            names.add(name)
        pieces.append(_piece(token, name, totals.get(index)))
    return "".join(pieces).removeprefix(_ANYTHING).removeprefix(r"\s*")


def _group_name(column: LearnedColumn | None, groups: Mapping[str, str]) -> str | None:
    """The name of a column's group; None for a number that is no column, or whose name cannot be one."""
    if column is None:
        return None
    if column.role not in ("value", "epoch_value"):
        return groups.get(column.role)
    name = re.sub(r"\W+", "_", column.name).strip("_")
    if name.isidentifier():
        return name
    return None


def _piece(token: Token, name: str | None, total: str | None) -> str:
    """The expression of one token, in a group if it has a name."""
    if token.kind in ("word", "mark"):
        return re.escape(token.text)
    if token.kind == "pair":
        separator = r"\s*/\s*" if "/" in token.text else r"\s+of\s+"
        return _group(name, _COUNT) + separator + _group(total, _COUNT)
    if token.kind == "number" and name in _COUNTERS:
        return _group(name, _COUNT)
    if token.kind in ("number", "comma"):
        return _group(name, _NUMBER)
    if token.kind == "tensor":
        return _group(name, r"\S+")
    return _ANYTHING


def _group(name: str | None, expression: str) -> str:
    if name is None:
        return expression
    return f"(?P<{name}>{expression})"
