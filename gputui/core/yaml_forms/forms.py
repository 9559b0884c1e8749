"""Shared parts of pydantic models for YAML, and pydantic's errors as messages with places."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gputui.core.yaml_forms.document import Document, KeyPath
from gputui.core.yaml_forms.file import given_twice, problem_at
from gputui.core.yaml_forms.problems import (
    NAME_PATTERN,
    ExpectedError,
    ProfileError,
    nearest,
    not_one_of,
    one_of,
    shown_value,
)

_KEY = "[key]"
"""Of a place: the key itself, not its value."""
_EXPECTED = "gputui_expected"
_PROBLEM = "gputui_problem"
# A bound of this size is no bound.
UNBOUNDED = 1e12
# More options are not listed if one of them is suggested.
_OPTIONS_SHOWN = 8
IN_QUOTES = "put it in quotes, for braces without them begin a mapping"

_EXPECTATIONS = {
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_too_long": "text of at most {max_length} characters",
    "float_type": "a number of seconds",
    "int_type": "a whole number",
    "none_required": "no number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "too_short": "at least {min_length} of them",
    "dict_type": "a mapping (name: value)",
    "model_type": "a mapping (key: value)",
    "dataclass_type": "a mapping (key: value)",
    "greater_than": "a number greater than {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:g}",
}
_PATTERNS = {
    "name": "a name of at most 64 letters, digits, '_', '.' and '-'",
    "module": "a module's dotted name such as package.train",
}


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""The name of a profile, a study or a target."""


class Model(BaseModel):
    """Accepts exactly the keys of its fields, with exactly their types. ``called`` is the noun for
    its keys; ``other_names`` maps names of other tools to keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
    called: ClassVar[str] = "key"
    other_names: ClassVar[Mapping[str, str]] = {}


def with_summaries(schema: Any) -> Any:
    """A JSON Schema with the first paragraph of every description: what follows is for readers of the code."""
    if isinstance(schema, list):
        return [with_summaries(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: with_summaries(part) for key, part in schema.items()}
    if isinstance(description := parts.get("description"), str):
        parts["description"] = description.partition("\n\n")[0]
    return parts


def expected(what: str) -> PydanticCustomError:
    """An error of a validator that says what a value should be."""
    return PydanticCustomError(_EXPECTED, "{what}", {"what": what})


def problem(what: str, *, at: KeyPath = ()) -> PydanticCustomError:
    """An error of a validator as a sentence; ``at`` is the place inside the value."""
    return PydanticCustomError(_PROBLEM, "{what}", {"what": what, "at": at})


def within(least: float, most: float = UNBOUNDED, *, whole: bool = False, what: str = "") -> BeforeValidator:
    """The bounds of a finite number; ``what`` describes it more precisely than "a number"."""
    if not what:
        what = "a whole number" if whole else "a number"
    sentence = f"{what} from {least:.12g}"
    if most < UNBOUNDED:
        sentence = f"{sentence} to {most:.12g}"

    def check(value: Any) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= most and math.isfinite(value)) or (whole and value % 1):
            raise expected(sentence)
        return value

    return BeforeValidator(check)


F = TypeVar("F", bound=Model)


def validated(document: Document, path: Path, form: type[F], context: str | None = None) -> F:
    """The content of a file as its model. Raises ProfileError with every problem and its place."""
    problems = given_twice(path, document)
    data = {} if document.data is None else document.data
    try:
        model = form.model_validate(data, context=context)
    except ValidationError as error:
        problems += [problem_at(path, document, place, **what) for place, what in findings(error, form)]
    if problems:
        raise ProfileError(problems)
    return model


def findings(
    error: ValidationError,
    form: type[Any],
    *,
    empty: Collection[KeyPath] = (),
    place_in_file: Callable[[KeyPath], KeyPath] = lambda place: place,
) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The place of each error, and the fields of a Problem.

    Args:
        form: The model or dataclass that was filled.
        empty: Keys that do not count as missing.
        place_in_file: For short forms that were expanded.
    """
    for detail in error.errors(include_url=False):
        written = tuple(part for part in detail["loc"] if part != _KEY)
        place = place_in_file(written)
        if detail["type"] == "missing" and place in empty:
            continue
        if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            model = _model_at(form, written[:-1])
            keys = [name for name in _keys(model) if name != _KEY]
            others = getattr(model, "other_names", {})
            sentence, meant = not_one_of(getattr(model, "called", "key"), str(place[-1]), keys, others)
            yield place, {"problem": sentence, "nearest": meant}
        else:
            yield _finding(detail, place)


def _model_at(form: Any, place: KeyPath) -> Any:
    """The model or dataclass of the mapping at a place inside ``form``."""
    for part in place:
        form = _inside(form)
        keys = _keys(form)
        kinds = [kind for kind in get_args(form) if kind is not ...]
        form = keys[part] if keys else kinds[-1]
    return _inside(form)


def _keys(form: Any) -> dict[Any, Any]:
    """The types of a form's keys by their names in the file; empty for another type."""
    if isinstance(form, type) and issubclass(form, Model):
        return {info.alias or name: info.annotation for name, info in form.model_fields.items()}
    if not is_dataclass(form):
        return {}
    hints = get_type_hints(form, include_extras=True)
    return {field.metadata.get("alias", field.name): hints[field.name] for field in fields(form) if field.metadata}


def _inside(kind: Any) -> Any:
    """A type without annotations and without None."""
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = get_args(kind)[0]
    return kind


def _finding(detail: ErrorDetails, place: KeyPath) -> tuple[KeyPath, dict[str, Any]]:
    kind = detail["type"]
    context = detail.get("ctx") or {}
    value = detail["input"]
    # A value of the environment may be a secret.
    actual = None
    if place[:1] != ("env",) or len(place) == 1:
        actual = shown_value(value)
    if kind == "missing":
        return place[:-1], {"problem": f"the key {place[-1]} is missing"}
    if kind == _PROBLEM:
        return (*place, *context["at"]), {"problem": context["what"]}
    if kind == _EXPECTED:
        return place, {"expected": context["what"], "actual": actual}
    if kind == "value_error":
        error = context["error"]
        if isinstance(error, ExpectedError):
            return place, {"expected": str(error), "actual": actual}
        return place, {"problem": str(error)}
    if kind == "literal_error":
        options = [option.strip("'") for option in str(context["expected"]).replace(" or ", ", ").split(", ")]
        meant = None
        if isinstance(value, str):
            meant = nearest(value, options)
        if meant is not None and len(options) > _OPTIONS_SHOWN:
            return place, {"problem": f"there is no {actual}", "nearest": meant}
        return place, {"expected": one_of(options), "actual": actual, "nearest": meant}
    if kind == "string_pattern_mismatch":
        return place, {"expected": _PATTERNS[str(place[-1])], "actual": actual}
    if kind == "string_type" and isinstance(value, bool | int | float):
        return place, {"expected": "text (put it in quotes)", "actual": actual}
    if kind == "string_type" and isinstance(value, dict):
        return place, {"expected": f"text ({IN_QUOTES})", "actual": actual}
    if kind in _EXPECTATIONS:
        return place, {"expected": _EXPECTATIONS[kind].format(**context), "actual": actual}
    return place, {"problem": detail["msg"]}
