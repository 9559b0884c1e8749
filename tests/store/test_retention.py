"""Retention, as a person writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import load_retention
from gputui.profiles.record_form import read_retention
from gputui.store.agent import DAY_SECONDS, Retention, age_words


def read(text: str) -> Retention:
    return read_retention(text, Path("record.yaml"))


def test_what_is_not_said_is_the_standard() -> None:
    assert read("") == read("{}") == Retention()
    retention = read("{raw: 36h, minutes: 8w, hours: 5y, events: 30d, size: 500MB}")
    assert retention == Retention(36 * 3600.0, 56 * DAY_SECONDS, 5 * 365 * DAY_SECONDS, 30 * DAY_SECONDS, 500_000_000)
    unbounded = read("{raw: forever, minutes: off, size: unlimited}")
    assert unbounded == Retention(None, None, size_bytes=None)


def test_mistakes() -> None:
    for text, message in [
        ("raw: 1h", "record.yaml:1: raw: expected 2h or more, found '1h'"),
        ("raw: 7", "expected a time such as 36h, 7d, 8w or 5y, or forever, found 7"),
        ("minutes: 1d", "at least as long as raw"),
        ("size: 1MB", "16MiB or more"),
        ("size: 4 pounds", "a size such as 500MB or 4GiB"),
        ("sizes: 4GiB", "unknown key; did you mean size?"),
        ("colour: red", "unknown key; there are raw, minutes, hours, events, size"),
        ("raw: 3h\nraw: 4h", "record.yaml:2: raw: the key is given twice"),
        ("[]", "expected a mapping"),
    ]:
        with pytest.raises(ProfileError, match=re.escape(message)):
            read(text)


def test_every_mistake_of_a_file_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "record.yaml"
    assert load_retention(path) == Retention()
    path.write_text("# the disk is small\nraw: 1 week\nsice: 2GiB\n")
    with pytest.raises(ProfileError) as caught:
        load_retention(path)
    assert [(problem.line, problem.key, problem.nearest) for problem in caught.value.problems] == [
        (2, "raw", None),
        (3, "sice", "size"),
    ]


def test_ages_in_words() -> None:
    ages = (None, 7 * DAY_SECONDS, 365 * DAY_SECONDS, 5 * 365 * DAY_SECONDS, 36 * 3600.0, DAY_SECONDS)
    assert [age_words(age) for age in ages] == ["for ever", "7 days", "1 year", "5 years", "36 hours", "1 day"]
