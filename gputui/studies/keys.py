"""Kinds of keys in a study's file: how pydantic reads each, and its JSON Schema.

Only `gputui.studies.study_file` checks a file, with pydantic, which the other processes do without.
Therefore a study is made of dataclasses, and what a key may hold stands in their metadata.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field
from typing import Annotated, Any, ClassVar

from gputui.core.yaml_forms.problems import ExpectedError
from gputui.core.yaml_forms.quantities import DURATION_PATTERN, is_number, parse_duration, parse_size
from gputui.runs.spec import Scalar

JsonSchema = dict[str, Any]

OVER = re.compile(r"^(?:best|last|mean of ([1-9][0-9]{0,4}))$")
_NOT_ZERO = r"^\s*(?=[^1-9]*[1-9])"

_TEXT_WORDS = "text without NUL characters"
_DURATION_WORDS = "a time such as 30m, 1h30m or 2d"
_SIZE_WORDS = "a size with its unit such as 10GiB or 500MB"
_SIZE_PATTERN = _NOT_ZERO + r"[0-9]{1,12}(\.[0-9]{1,6})? ?([kKmMgGtTpP][iI]?)?[bB]\s*$"
_DURATION_PATTERN = _NOT_ZERO + DURATION_PATTERN.removeprefix("^")
_OVER_WORDS = "best, last, or mean of a number of values such as mean of 5"
_LENGTH_WORDS = "a number greater than 0, or the name of the parameter that is it"
_ABOVE_ZERO: JsonSchema = {"type": "number", "exclusiveMinimum": 0}
NULL: JsonSchema = {"type": "null"}
A_NAME: JsonSchema = {"type": "string", "minLength": 1}
LIST: JsonSchema = {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean", "null"]}}
"""A list of single values."""


class Reads:
    """Metadata for pydantic: ``parse`` reads a value and raises ValueError, ``schema`` changes the
    JSON Schema of its type."""

    def __init__(self, parse: Callable[[Any], object], schema: Callable[[JsonSchema], JsonSchema] = dict) -> None:
        self.parse = parse
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> JsonSchema:
        return self.schema(handler(core))


class Section:
    """A mapping of the file that has no other keys."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}


def key(description: str, default: Any = MISSING, *, name: str | None = None, **limits: float | str) -> Any:
    """A field that is a key of the file, called ``name`` there; ``limits`` are those of pydantic."""
    defaults: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    strict = {"strict": True} if limits else {}
    metadata: dict[str, Any] = {"description": description, **strict, **limits}
    if name:
        metadata["alias"] = name
    return field(**defaults, metadata=metadata)


def _with_keywords(**schema: Any) -> Callable[[JsonSchema], JsonSchema]:
    """The JSON Schema of a type with further keywords."""
    return lambda base: {**base, **schema}


def or_short(schema: JsonSchema) -> Callable[[JsonSchema], JsonSchema]:
    """The JSON Schema of a type that has a short form."""
    return lambda base: {"anyOf": [schema, base]}


def _replaced_by(**schema: Any) -> Callable[[JsonSchema], JsonSchema]:
    """Another JSON Schema than that of the type."""
    return lambda _: schema


def _checks(is_right: Callable[[Any], object], expected: str) -> Callable[[object], object]:
    """A check of a value; ``expected`` says in words what is right."""

    def check(value: object) -> object:
        if not is_right(value):
            raise ExpectedError(expected)
        return value

    return check


def _converts(convert: Callable[[str], float | None], expected: str) -> Callable[[object], object]:
    """A conversion of text to a number that is not 0."""

    def read(text: object) -> object:
        value = None
        if isinstance(text, str):
            value = convert(text)
        if not value:
            raise ExpectedError(expected)
        return value

    return read


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _check_single_value(value: object) -> object:
    if isinstance(value, (dict, list)):
        raise ExpectedError("a single value: text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpectedError("a finite number (put it in quotes to pass it as text)")
    return value


def _as_list(value: object) -> object:
    """A single value as a list of one."""
    if isinstance(value, list):
        return value
    return [value]


def _check_filled_list(value: object) -> object:
    """Check for a list that is not empty."""
    if not isinstance(value, list):
        raise ExpectedError("a list")
    if not value:
        raise ExpectedError("at least 1 of them")
    return value


Number = Annotated[float, Reads(_checks(is_number, "a number"))]
Positive = Annotated[float, Reads(_checks(_is_positive, "a number greater than 0"), _with_keywords(exclusiveMinimum=0))]
Switch = Annotated[bool, Reads(_checks(lambda value: isinstance(value, bool), "true or false"))]
Text = Annotated[
    str, Reads(_checks(lambda value: "\0" not in str(value), _TEXT_WORDS), _with_keywords(pattern=r"^[^\x00]*$"))
]
Duration = Annotated[
    float, Reads(_converts(parse_duration, _DURATION_WORDS), _replaced_by(type="string", pattern=_DURATION_PATTERN))
]
Size = Annotated[int, Reads(_converts(parse_size, _SIZE_WORDS), _replaced_by(type="string", pattern=_SIZE_PATTERN))]
Over = Annotated[
    str, Reads(_checks(lambda value: OVER.fullmatch(str(value)), _OVER_WORDS), _with_keywords(pattern=OVER.pattern))
]
Length = Annotated[float, Reads(_checks(_is_positive, _LENGTH_WORDS), _replaced_by(anyOf=[A_NAME, _ABOVE_ZERO]))]
Value = Annotated[Scalar, Reads(_check_single_value, _replaced_by(**LIST["items"]))]
Values = Annotated[tuple[Value, ...], Reads(_check_filled_list, _replaced_by(**LIST))]
Choices = Annotated[tuple[Value, ...], Reads(_check_filled_list, _replaced_by(**LIST, uniqueItems=True))]
Factors = Annotated[tuple[Positive, ...], Reads(_check_filled_list, _with_keywords(minItems=1))]
OneOrMore = Annotated[Values, Reads(_as_list, or_short(LIST["items"]))]
