"""How long things are kept, as a person writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.profiles.problems import ProfileError
from gputui.profiles.record_file import load_retention
from gputui.store.retention import DAY_SECONDS, Retention, RetentionError, age_words, parse_retention


def test_what_is_not_said_is_the_standard() -> None:
    assert parse_retention({}) == Retention()
    found = parse_retention({"raw": "36h", "minutes": "8w", "hours": "5y", "events": "30d", "size": "500MB"})
    assert found == Retention(36 * 3600.0, 56 * DAY_SECONDS, 5 * 365 * DAY_SECONDS, 30 * DAY_SECONDS, 500_000_000)
    assert parse_retention({"raw": "forever", "minutes": "forever", "size": "unlimited"}).size_bytes is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"raw": "1h"}, "expected 2h or more"),
        ({"raw": 7}, "expected a time such as"),
        ({"minutes": "1d"}, "at least as long as raw"),
        ({"size": "1MB"}, "16MiB or more"),
        ({"sizes": "4GiB"}, "unknown key"),
        ([], "expected a mapping"),
    ],
)
def test_mistakes(given: object, words: str) -> None:
    with pytest.raises(RetentionError, match=words):
        parse_retention(given)


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
