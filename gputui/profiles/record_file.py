"""``record.yaml``: how long this machine keeps what is recorded. Needs no pydantic, for the agent reads it."""

from __future__ import annotations

from pathlib import Path

from gputui.profiles.problems import Problem, ProfileError, shown_path
from gputui.profiles.yaml_file import read_text
from gputui.profiles.yamldoc import Document, Mark, YamlError, parse
from gputui.store.retention import Retention, RetentionError, parse_retention


def load_retention(path: Path) -> Retention:
    """What the file says, the standard where it is not there. Raises ProfileError with every problem and its line."""
    if not path.exists():
        return Retention()
    text = read_text(path, "file of settings for the record")
    try:
        document = parse(text, lambda _place: False)
    except YamlError as error:
        mark = error.mark or Mark(1, 1)
        raise ProfileError([Problem(shown_path(path), mark.line, mark.column, "", str(error))]) from error
    if document.data is None:
        return Retention()
    problems = [_problem(path, document, str(place[-1]), "the key is given twice") for place, _ in document.duplicates]
    try:
        found = parse_retention(document.data)
    except RetentionError as error:
        problems += [_problem(path, document, one.key, one.text, one.nearest) for one in error.problems]
    if problems:
        raise ProfileError(problems)
    return found


def _problem(path: Path, document: Document, key: str, text: str, nearest: str | None = None) -> Problem:
    mark = document.marks.get((key,), Mark(1, 1))
    return Problem(shown_path(path), mark.line, mark.column, key, text, nearest=nearest)
