"""What is wrong with a setting, in words: from pydantic's errors to the rest of one line.

Every text continues the name of the setting, wherever that was written: `` must be at least 1, got 0`` after
``--batch-size`` or after ``run.yaml:3: batch_size``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainer.config.schema import PROBLEM, Settings

_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}

# By the beginning of pydantic's type of error, such as int_parsing and int_type.
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "dict": "names with values",
    "tuple": "a list",
}


class SettingProblem(NamedTuple):
    """A setting's name and what is wrong with it."""

    name: str
    text: str


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str] | None = None) -> str:
    """The known name, by default a setting's, most like this one; empty if none is."""
    candidates = list(Settings.model_fields if known is None else known)
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)), "")


def first(error: ValidationError) -> SettingProblem:
    """The first problem that pydantic found."""
    errors = error.errors(include_url=False)
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
    same = [problem for problem in errors if problem["loc"][:1] == errors[0]["loc"][:1]]
    if len(same) > 1 and name == "batch_size":
        return SettingProblem(name, _of_union(same))
    return _in_words(name, errors[0])


def _in_words(name: str, error: ErrorDetails) -> SettingProblem:
    kind, given = error["type"], error["input"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == PROBLEM:
        return SettingProblem(context["name"], context["problem"])
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = context[key]
        return SettingProblem(
            name, f" must be {words} {limit if isinstance(limit, int) else f'{limit:g}'}, got {given}"
        )
    if kind == "literal_error":
        choices = context["expected"].replace(" or ", ", ").replace("'", "")
        return SettingProblem(name, f" must be one of {choices}, got {given!r}")
    expected = _EXPECTED.get(kind.partition("_")[0])
    return SettingProblem(name, f": expected {expected}, got {given!r}" if expected else f": {error['msg']}")


def _of_union(errors: list[ErrorDetails]) -> str:
    """The batch size is a number or a word: a number out of range is no unknown word."""
    for error in errors:
        if error["type"] in _LIMITS:
            return _in_words("", error).text
    return f": expected a whole number or auto, got {errors[0]['input']!r}"
