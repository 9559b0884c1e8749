"""``alerts.yaml``: what this machine changes of the alert rules, and how alerts are told. Needs no pydantic, for the
agent reads it."""

from __future__ import annotations

from pathlib import Path

from gputui.alerts.overrides import AlertsError, Overrides, parse_overrides
from gputui.profiles.problems import ProfileError
from gputui.profiles.yaml_file import given_twice, parse_file, problem_at, read_text, whole_file


def load_alerts(path: Path) -> Overrides:
    """What the file says; nothing where it is not there. Raises ProfileError with every problem, each with its line."""
    if not path.exists():
        return Overrides()
    return read_alerts(read_text(path, "file of alert rules"), path)


def read_alerts(text: str, path: Path) -> Overrides:
    """The same from the file's text. Raises ProfileError."""
    document = parse_file(text, path, lambda place: place[:2] == ("notify", "command") and len(place) > 2)
    if document.data is None:
        return Overrides()
    if not isinstance(document.data, dict):
        raise whole_file(path, "expected a mapping from rules to what is changed of them")
    problems = given_twice(path, document)
    try:
        found = parse_overrides(document.data, "machine")
    except AlertsError as error:
        problems += [problem_at(path, document, one.place, one.text, nearest=one.nearest) for one in error.problems]
    if problems:
        raise ProfileError(problems)
    return found
