"""Parameters of a profile: kinds, limits, and parsing of ``--set name=value`` and form fields."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from gputui.core.errors import ExplainedError
from gputui.core.yaml_forms.problems import not_one_of, one_of, shown_value
from gputui.runs.command import format_value
from gputui.runs.spec import Scalar

Kind = Literal["bool", "int", "float", "str", "any"]

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_.-]*"
RUN_DIR = "{run_dir}"
"""The placeholder of the run's folder."""
RESERVED_NAMES = ("run_dir", "checkpoint", "checkpoint_step")
"""Placeholders that are not parameters."""

UNDECIDED = "TODO"
"""The value of a parameter that a person must still give, in a drafted profile."""

MAX_INTEGER = 2**63 - 1
"""The largest that SQLite and JSON readers keep exactly."""

_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
# Python converts no integer of some thousand digits; none of these is a number that a script takes.
_MOST_DIGITS = 29
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NONE = frozenset({"", "none", "null", "~"})
_NOUNS: dict[Kind, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "any": "text, a number or none",
}


class ParameterError(ExplainedError, ValueError):
    """A value that a parameter cannot take, or an unknown parameter. One line for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class UnfitValueError(ParameterError):
    """A value that the parameter cannot take; ``what`` is the message without its name."""

    def __init__(self, name: str, what: str) -> None:
        self.what = what
        super().__init__([f"{name}: {what}"])


class Parameter(Struct, frozen=True):
    """A parameter of a profile. Its kind is that of its default and its choices; without any it takes anything.

    Attributes:
        help: A short text for the launch page.
        choices: The allowed values, empty for no such limit.
        minimum: The smallest number that is allowed, None without a limit.
        maximum: The largest number that is allowed, None without a limit.
        multiple_of: Only multiples of this number are allowed, None without a limit.
    """

    name: str
    default: Scalar
    help: str | None = None
    choices: tuple[Scalar, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    multiple_of: int | None = None

    @property
    def kind(self) -> Kind:
        kinds = {_kind_of(value) for value in (self.default, *self.choices) if value is not None}
        if kinds == {"int", "float"}:
            return "float"
        if len(kinds) == 1:
            return kinds.pop()
        return "any"

    @property
    def expected(self) -> str:
        """The accepted values in words, such as "a whole number of at least 1"."""
        if self.choices:
            return one_of(format_value(choice) or "none" for choice in self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"{self._noun} from {format_value(self.minimum)} to {format_value(self.maximum)}"
        if self.minimum is not None:
            return f"{self._noun} of at least {format_value(self.minimum)}"
        if self.maximum is not None:
            return f"{self._noun} of at most {format_value(self.maximum)}"
        return self._noun

    @property
    def _noun(self) -> str:
        if self.multiple_of is not None:
            return f"a multiple of {self.multiple_of}"
        if self.kind == "any" and self.is_bounded:
            return "a number"
        return _NOUNS[self.kind]

    @property
    def is_bounded(self) -> bool:
        return self.minimum is not None or self.maximum is not None

    @property
    def is_whole_by_default(self) -> bool:
        """True if nothing but its default says that it takes whole numbers."""
        return self.kind == "int" and not self.choices and self.multiple_of is None

    @property
    def by_example(self) -> str:
        """How a parameter that ``is_whole_by_default`` becomes one that takes any number."""
        return f"its default {self.default} is a whole number; {self.default}.0 in the profile takes any number"

    def parse(self, argument: Scalar) -> Scalar:
        """Convert typed text, or check a value of the right type.

        A text parameter takes its text unchanged, ``=`` and ``@`` included. Raises ParameterError.
        """
        value = self._convert(argument)
        if isinstance(value, str) and "\0" in value:
            raise self._error(argument, "text without NUL characters")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(argument, "a finite number")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise self._error(argument, "a whole number of at most 63 bits")
        if value is not None and not self._accepts(value):
            raise self._error(argument)
        return value

    def _accepts(self, value: bool | int | float | str) -> bool:
        if self.multiple_of is not None and (not isinstance(value, int) or value % self.multiple_of):
            return False
        if self.choices:
            # True == 1, but it is another choice.
            choices = [choice for choice in self.choices if isinstance(choice, bool) == isinstance(value, bool)]
            return value in choices
        if not self.is_bounded:
            return True
        least = -math.inf if self.minimum is None else self.minimum
        most = math.inf if self.maximum is None else self.maximum
        if isinstance(value, bool | str):
            return False
        return least <= value <= most

    @property
    def _takes_none(self) -> bool:
        return self.default is None or None in self.choices

    def _convert(self, argument: Scalar) -> Scalar:
        """The value of typed text; another value as it is, if it is of the parameter's kind."""
        if isinstance(argument, str):
            return self._from_text(argument)
        if argument is None:
            if self._takes_none:
                return None
            raise self._error(argument)
        if self.kind == "float" and _kind_of(argument) == "int":
            try:
                return float(argument)
            except OverflowError:
                raise self._error(argument, "a finite number") from None
        if self.kind not in ("any", _kind_of(argument)):
            raise self._wrong_kind(argument)
        return argument

    def _from_text(self, text: str) -> Scalar:
        for choice in self.choices:
            if choice is not None and format_value(choice) == text:
                return choice
        word = text.strip()
        if self._takes_none and word.lower() in _NONE:
            return None
        kind = self.kind
        if kind == "str":
            return text
        if kind == "any":
            return _number_or_text(text)
        if kind == "bool" and word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        if kind == "int" and _is_whole(word):
            return int(word)
        if kind == "float" and _FLOAT.fullmatch(word):
            return float(word)
        raise self._wrong_kind(text)

    def _error(self, argument: Scalar, expected: str | None = None) -> UnfitValueError:
        return UnfitValueError(self.name, f"expected {expected or self.expected}, found {shown_value(argument)}")

    def _wrong_kind(self, argument: Scalar) -> UnfitValueError:
        """The error for a value of another kind; for a fraction, with how the parameter takes one."""
        error = self._error(argument)
        word = str(argument).strip()
        is_fraction = _FLOAT.fullmatch(word) and not _INTEGER.fullmatch(word)
        if is_fraction and self.is_whole_by_default:
            return UnfitValueError(self.name, f"{error.what}; {self.by_example}")
        return error


def split_assignments(items: Iterable[str]) -> dict[str, str]:
    """``["lr=0.1", "inject=oom@step=40"]`` → names and texts. The last of several for one name counts.

    Raises ParameterError for each item without a name and "=".
    """
    texts: dict[str, str] = {}
    problems: list[str] = []
    for item in items:
        name, equals, text = item.partition("=")
        if equals and name.strip():
            texts[name.strip()] = text
        else:
            problems.append(f"expected NAME=VALUE, found {shown_value(item)}")
    if problems:
        raise ParameterError(problems)
    return texts


def apply(parameters: Mapping[str, Parameter], overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Every parameter's value, overridden or default, in the profile's order.

    Raises ParameterError with every problem.
    """
    values = {name: parameter.default for name, parameter in parameters.items()}
    problems: list[str] = []
    for name, override in overrides.items():
        parameter = parameters.get(name)
        if parameter is None:
            problems.append(f"{name}: {unknown_parameter(name, parameters)}")
            continue
        try:
            values[name] = parameter.parse(override)
        except ParameterError as error:
            problems += error.problems
    if problems:
        raise ParameterError(problems)
    return values


def unknown_parameter(name: str, names: Iterable[str]) -> str:
    """The message for an unknown parameter, without its name."""
    parameters = list(names)
    if not parameters:
        return "unknown parameter; this profile has none"
    sentence, meant = not_one_of("parameter", name, parameters)
    if meant:
        return f"{sentence}; did you mean {meant}?"
    return sentence


def _kind_of(value: Scalar) -> Literal["bool", "int", "float", "str"]:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return "str"


def _number_or_text(text: str) -> Scalar:
    """A number or boolean if it is spelled in the shortest way (not ``0.10``), else the text."""
    if text in ("true", "false"):
        return text == "true"
    number: int | float | None = None
    if _is_whole(text):
        number = int(text)
    elif _FLOAT.fullmatch(text) and len(text) <= _MOST_DIGITS:
        number = float(text)
    if number is None or format_value(number) != text:
        return text
    is_kept_exactly = abs(number) <= MAX_INTEGER if isinstance(number, int) else math.isfinite(number)
    return number if is_kept_exactly else text


def _is_whole(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and len(text) <= _MOST_DIGITS
