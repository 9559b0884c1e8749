"""When lines of logs say that they were written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gputui.runs.log_lines import line_time, lines_by

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("line", "after_noon"),
    [
        ("2026-11-21 12:00:05,250 INFO step 3", 5.25),
        ("[2026-11-21T12:00:05Z] step 3", 5.0),
        ("2026-11-21T14:00:05.5+02:00 x", 5.5),
        ("[rank1]:[2026-11-21 12:01:00,000] torch", 60.0),
        ("W1121 12:00:07.123000 4242 torch/distributed/run.py:766] x", 7.0),
        ("[rank0]:[W1121 12:00:07.5 x.cpp:1] y", 7.0),
        ("12:00:05 step 3", None),
        ("step 3 loss 2.0", None),
        ("2026-13-41 12:00:05 no day", None),
        ("x" * 100 + "2026-11-21 12:00:05", None),
    ],
)
def test_the_time_of_a_line(line: str, after_noon: float | None) -> None:
    found = line_time(line, NOON)
    assert found == (None if after_noon is None else NOON + after_noon)


def test_lines_up_to_a_moment() -> None:
    lines = [
        "banner", "2026-11-21 12:00:01 one", "  detail", "2026-11-21 12:00:05 two", "  more",
        "2026-11-21 12:00:09 three", "tail",
    ]  # fmt: skip
    counts = [lines_by(lines, NOON + seconds) for seconds in (0, 1, 4.9, 5, 8, 9, 99)]
    assert counts == [0, 3, 3, 5, 5, 7, 7]
    assert lines_by(["no", "times"], NOON) is None
    assert lines_by([], NOON) is None
