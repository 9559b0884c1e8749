"""A YAML file that a person wrote: its text, its data with places, and its problems by line."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from gputui.core.yaml_forms.document import MAX_BYTES, Document, KeyPath, Mark, YamlError, parse
from gputui.core.yaml_forms.problems import Problem, ProblemWords, ProfileError, shown_path


def read_text(path: Path, what: str = "profile") -> str:
    """The text of a regular file; ``what`` is what it should be. Raises ProfileError."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise whole_file(path, f"is a folder; a {what} is a YAML file")
        if not stat.S_ISREG(status.st_mode):
            raise whole_file(path, "is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise whole_file(path, f"cannot be read: {error.strerror or error}".lower()) from error
    except ValueError as error:
        raise whole_file(path, "is no file's name") from error
    if len(content) > MAX_BYTES:
        raise whole_file(path, f"is larger than {MAX_BYTES >> 20} MiB, which no {what} is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = "not UTF-8; save it in that encoding"
        raise ProfileError([Problem(shown_path(path), line, column=None, key="", problem=text)]) from error


def whole_file(path: Path, text: str) -> ProfileError:
    """A problem of the file as a whole."""
    return ProfileError([Problem(shown_path(path), line=None, column=None, key="", problem=text)])


def parse_file(text: str, path: Path, is_literal: Callable[[KeyPath], bool] = lambda _: False) -> Document:
    """`document.parse` of a file's text. Raises ProfileError."""
    try:
        return parse(text, is_literal)
    except YamlError as error:
        mark = error.mark or Mark(1, 1)
        raise ProfileError([Problem(shown_path(path), mark.line, mark.column, "", str(error))]) from error


def problem_at(path: Path, document: Document, place: KeyPath, **texts: Unpack[ProblemWords]) -> Problem:
    """A problem at a place of a file, with its line."""
    mark = document.mark(place)
    return Problem(shown_path(path), mark.line, mark.column, _dotted(place, document), **texts)


def given_twice(path: Path, document: Document) -> list[Problem]:
    """The duplicate keys of every mapping."""
    text = "the key is given twice"
    return [
        Problem(shown_path(path), mark.line, mark.column, _dotted(place, document), text)
        for place, mark in document.duplicates
    ]


def _dotted(place: KeyPath, document: Document) -> str:
    """A place as text, up to a key that is not in the file, such as the default of a parameter's short form."""
    while place and place not in document.marks:
        place = place[:-1]
    return ".".join(map(str, place))
