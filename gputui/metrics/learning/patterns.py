"""A learned shape as the pattern of a profile, for a person who wants to change what is read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gputui.metrics.learning.shapes import LearnedColumn, LearnedShape
from gputui.metrics.learning.tokens import Token, tokenize

_COUNT, _NUMBER, _ANYTHING = r"[\d,]+", r"[-+.,\w]+", ".*?"


def profile_pattern(shape: LearnedShape) -> str | None:
    """The regular expression of a shape's lines, with named groups; None where a profile cannot say it: its lines only
    count, or their step is that of other lines."""
    has_step = shape.has("step")
    if shape.is_source or shape.restarts or shape.is_held_out or not (has_step or shape.has("epoch")):
        return None
    names = {"step": "step", "step_total": "total_steps", "epoch": "epoch"}
    if has_step and shape.has("epoch"):
        names = {"step": "iter", "step_total": "total", "epoch": "epoch"}
    tokens = tokenize(shape.example)
    columns = {column.token: column for column in reversed(shape.columns)}
    totals = {column.token: column for column in shape.columns if column.role.endswith("_total")}
    taken: set[str] = set()
    pieces = []
    for index, token in enumerate(tokens[: max(columns) + 1]):
        if index and token.gap:
            pieces.append(r"\s*")
        column = columns.get(index)
        name = None if column is None else _group_name(column, names)
        pieces.append(_piece(token, name if name not in taken else None, _total_name(totals.get(index), names)))
        taken.add(name or "")
    return "".join(pieces).removeprefix(_ANYTHING).removeprefix(r"\s*")


def _group_name(column: LearnedColumn, names: Mapping[str, str]) -> str | None:
    if column.role in ("value", "epoch_value"):
        name = re.sub(r"\W+", "_", column.name).strip("_")
        return name if name.isidentifier() else None
    return names.get(column.role)


def _total_name(column: LearnedColumn | None, names: Mapping[str, str]) -> str | None:
    return None if column is None else names.get(column.role)


def _piece(token: Token, name: str | None, total: str | None) -> str:
    if token.kind in ("word", "mark"):
        return re.escape(token.text)
    if token.kind == "pair":
        separator = r"\s*/\s*" if "/" in token.text else r"\s+of\s+"
        return _group(name, _COUNT) + separator + _group(total, _COUNT)
    if token.kind == "number" and name in ("step", "iter", "epoch"):
        return _group(name, _COUNT)
    if token.kind in ("number", "comma"):
        return _group(name, _NUMBER)
    return _group(name, r"\S+") if token.kind == "tensor" else _ANYTHING


def _group(name: str | None, expression: str) -> str:
    return expression if name is None else f"(?P<{name}>{expression})"
