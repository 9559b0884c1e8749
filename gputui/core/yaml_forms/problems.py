"""Problems of a YAML file, as one readable line each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.errors import ExplainedError
from gputui.core.text import clean

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""The name of a profile, a study or a target."""
_SHOWN_CHARACTERS = 60  # of a value in a sentence that fits a line


class Problem(Struct, frozen=True):
    """A problem of a file.

    Attributes:
        file: The file's path, as a person sees it.
        line: Counts from 1, None for the file as a whole.
        column: Counts from 1, None for the file as a whole.
        key: Dotted (``params.lr``), "" for the whole file.
        problem: What is wrong, None if that is only that something else is expected.
        expected: What the value should be.
        actual: What the value is, for one of a wrong kind.
        nearest: A suggestion.
    """

    file: str
    line: int | None
    column: int | None
    key: str
    problem: str | None = None
    expected: str | None = None
    actual: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        where = self.file
        if self.line is not None:
            where = f"{self.file}:{self.line}"
        return clean(": ".join(filter(None, (where, self.key, self._message()))))

    def _message(self) -> str:
        what = self.problem or f"expected {self.expected}"
        if self.problem and self.expected:
            what += f": expected {self.expected}"
        if self.actual is not None:
            what += f", found {self.actual}"
        if self.nearest is not None:
            what += f"; did you mean {self.nearest}?"
        return what

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ProblemWords(TypedDict, total=False):
    """The words of a `Problem`, without its place."""

    problem: str
    expected: str
    actual: str | None
    nearest: str | None


class ExpectedError(ValueError):
    """A value is not what its key holds; the text says what is expected."""


class ProfileError(ExplainedError):
    """A file cannot be used. ``problems`` are sorted by line; the text has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        super().__init__("\n".join(map(str, self.problems)))


def shown_path(path: Path) -> str:
    """A path for a person: relative if it lies below the current directory, which is not the root."""
    try:
        here = Path.cwd()
        if path.is_absolute() and here.parent != here:
            return str(path.relative_to(here))
        return str(path)
    except (ValueError, OSError):
        return str(path)


def shown_value(value: object) -> str:
    """A value in a few words; text in quotes, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, (int, float)):
        if isinstance(value, float) and math.isnan(value):
            return "not a number"
        return shorten(str(value))
    if isinstance(value, str):
        if value:
            return f"'{shorten(value)}'"
        return "an empty text"
    if isinstance(value, list):
        return "a list"
    return "a mapping"


def shorten(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[: _SHOWN_CHARACTERS - 1] + "…"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` closest to ``name``, or None; case and dashes do not count."""
    plain = {_plain(candidate): candidate for candidate in names}
    matches = difflib.get_close_matches(_plain(name)[:100], plain, n=1, cutoff=0.6)
    if matches:
        return plain[matches[0]]
    return None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ "did you mean …?" with the nearest name; "" if none is close."""
    meant = nearest(name, names)
    if meant is not None:
        return f"did you mean {meant}?"
    return ""


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """As `nearest`, for files. A common suffix alone does not make names similar."""
    listed = list(names)
    stem = PurePath(name).stem
    same = {PurePath(file).stem: file for file in reversed(listed) if PurePath(file).suffix == PurePath(name).suffix}
    others = {file: file for file in listed if file not in same.values()}
    nearest_stem = nearest(stem, same)
    if nearest_stem is not None:
        return same[nearest_stem]
    return nearest(name, others)


def not_one_of(
    what: str, name: str, options: Iterable[str], other_names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str | None]:
    """The message for an unknown name, and the nearest known one.

    >>> not_one_of("key", "lerning_rate", ["learning_rate", "steps"])
    ('unknown key', 'learning_rate')

    Args:
        what: What the name is of.
        other_names: Names of other tools, with those here.
    """
    names = list(options)
    meant = other_names.get(_plain(name)) or nearest(name, names)
    message = f"unknown {what}"
    if not meant:
        message = f"{message}; there are {', '.join(names)}"
    return message, meant


def one_of(names: Iterable[object]) -> str:
    """``a, b or c``."""
    options = [str(name) for name in names]
    if len(options) == 1:
        return options[0]
    return f"{', '.join(options[:-1])} or {options[-1]}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
