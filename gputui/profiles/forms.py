"""YAML as pydantic models: what all of them share, and pydantic's errors in a person's words, each with its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gputui.profiles.nearest import nearest, one_of
from gputui.profiles.problems import shown_value
from gputui.profiles.yamldoc import Place

_EXPECTED = "gputui_expected"
_PROBLEM = "gputui_problem"
IN_QUOTES = "put it in quotes, for braces without them begin a mapping"

_IN_WORDS = {
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_too_long": "text of at most {max_length} characters",
    "float_type": "a number of seconds",
    "finite_number": "a finite number",
    "list_type": "a list",
    "too_short": "at least {min_length} of them",
    "dict_type": "a mapping (name: value)",
    "model_type": "a mapping (key: value)",
    "greater_than": "a number greater than {gt:g}",
    "less_than_equal": "a number of at most {le:g}",
}
_PATTERNS = {
    "name": "a name of at most 64 letters, digits, '_', '.' and '-'",
    "module": "a module's dotted name such as package.train",
}


class Model(BaseModel):
    """Exactly the keys of its fields, each of exactly its type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


def expected(what: str) -> PydanticCustomError:
    """An error of a validator that says what a value should have been."""
    return PydanticCustomError(_EXPECTED, "{what}", {"what": what})


def problem(what: str) -> PydanticCustomError:
    """An error of a validator that says what is wrong in a sentence."""
    return PydanticCustomError(_PROBLEM, "{what}", {"what": what})


def findings(
    error: ValidationError,
    valid_keys: Callable[[Place], list[str]],
    *,
    empty: Collection[Place] = (),
    has_one_source: bool = False,
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """For each error its place and the fields of a Problem: problem, expected, found, nearest.

    ``valid_keys`` are those that the mapping at a place may hold. A key that is ``empty`` has been spoken of, and does
    not count as missing. With ``has_one_source``, ``metrics`` was no list in the file.
    """
    for detail in error.errors(include_url=False):
        place = tuple(part for part in detail["loc"] if part != "[key]")
        if has_one_source and place[:2] == ("metrics", 0):
            place = ("metrics", *place[2:])
        if detail["type"] == "missing" and place in empty:
            continue
        yield _finding(detail, place, valid_keys)


def _finding(
    detail: ErrorDetails, place: Place, valid_keys: Callable[[Place], list[str]]
) -> tuple[Place, dict[str, Any]]:
    kind, context, given = detail["type"], detail.get("ctx") or {}, detail["input"]
    # A value of the environment may be a secret.
    found = None if place[:1] == ("env",) and len(place) > 1 else shown_value(given)
    if kind == "extra_forbidden":
        keys = valid_keys(place[:-1])
        meant = nearest(str(place[-1]), keys)
        return place, {
            "problem": "unknown key" if meant else f"unknown key; there are {', '.join(keys)}",
            "nearest": meant,
        }
    if kind == "missing":
        return place[:-1], {"problem": f"the key {place[-1]} is missing"}
    if kind == _PROBLEM:
        return place, {"problem": context["what"]}
    if kind == _EXPECTED:
        return place, {"expected": context["what"], "found": found}
    if kind == "literal_error":
        options = [option.strip("'") for option in str(context["expected"]).replace(" or ", ", ").split(", ")]
        meant = nearest(given, options) if isinstance(given, str) else None
        return place, {"expected": one_of(options), "found": found, "nearest": meant}
    if kind == "string_pattern_mismatch":
        return place, {"expected": _PATTERNS[str(place[-1])], "found": found}
    if kind == "string_type" and isinstance(given, bool | int | float):
        return place, {"expected": "text (put it in quotes)", "found": found}
    if kind == "string_type" and isinstance(given, dict):
        return place, {"expected": f"text ({IN_QUOTES})", "found": found}
    if kind in _IN_WORDS:
        return place, {"expected": _IN_WORDS[kind].format(**context), "found": found}
    return place, {"problem": detail["msg"]}
