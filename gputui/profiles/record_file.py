"""``record.yaml``: how long this machine keeps what is recorded. Needs no pydantic, for the agent reads it."""

from __future__ import annotations

from pathlib import Path

from gputui.profiles.problems import ProfileError
from gputui.profiles.yaml_file import given_twice, parse_file, problem_at, read_text
from gputui.store.retention import Retention, RetentionError, parse_retention


def load_retention(path: Path) -> Retention:
    """What the file says, the standard where it is not there. Raises ProfileError with every problem and its line."""
    if not path.exists():
        return Retention()
    document = parse_file(read_text(path, "file of settings for the record"), path)
    if document.data is None:
        return Retention()
    problems = given_twice(path, document)
    try:
        found = parse_retention(document.data)
    except RetentionError as error:
        problems += [problem_at(path, document, (one.key,), one.text, nearest=one.nearest) for one in error.problems]
    if problems:
        raise ProfileError(problems)
    return found
