"""``alerts.yaml``: what this machine changes of the alert rules, and how alerts are told. Needs no pydantic, for the
agent reads it."""

from __future__ import annotations

from pathlib import Path

from gputui.alerts.overrides import AlertsError, Overrides, parse_overrides
from gputui.profiles.problems import Problem, ProfileError, shown_path
from gputui.profiles.yaml_file import read_text, whole_file
from gputui.profiles.yamldoc import Document, Mark, Place, YamlError, parse


def load_alerts(path: Path) -> Overrides:
    """What the file says; nothing where it is not there. Raises ProfileError with every problem, each with its line."""
    if not path.exists():
        return Overrides()
    return read_alerts(read_text(path, "file of alert rules"), path)


def read_alerts(text: str, path: Path) -> Overrides:
    """The same from the file's text. Raises ProfileError."""
    try:
        document = parse(text, lambda place: place[:2] == ("notify", "command") and len(place) > 2)
    except YamlError as error:
        mark = error.mark or Mark(1, 1)
        raise ProfileError([Problem(shown_path(path), mark.line, mark.column, "", str(error))]) from error
    if document.data is None:
        return Overrides()
    if not isinstance(document.data, dict):
        raise whole_file(path, "expected a mapping from rules to what is changed of them")
    problems = [_problem(path, document, place, mark, "the key is given twice") for place, mark in document.duplicates]
    try:
        found = parse_overrides(document.data, "machine")
    except AlertsError as error:
        problems += [
            _problem(path, document, one.place, document.mark(one.place), one.text, one.nearest)
            for one in error.problems
        ]
    if problems:
        raise ProfileError(problems)
    return found


def _problem(
    path: Path, document: Document, place: Place, mark: Mark, text: str, nearest: str | None = None
) -> Problem:
    while place and place not in document.marks:
        place = place[:-1]
    return Problem(shown_path(path), mark.line, mark.column, ".".join(map(str, place)), text, nearest=nearest)
