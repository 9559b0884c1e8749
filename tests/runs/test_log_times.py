"""When lines of logs say that they were written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gputui.runs.logs import line_time, lines_by
from tests.tables import table

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@table("line, after_noon", [
    ("2026-11-21 12:00:05,250 INFO step 3", 5.25), ("[2026-11-21T12:00:05Z] step 3", 5.0),
    ("2026-11-21T14:00:05.5+02:00 x", 5.5), ("[rank1]:[2026-11-21 12:01:00,000] torch", 60.0),
    ("W1121 12:00:07.125000 4242 torch/distributed/run.py:766] x", 7.125),
    ("[rank0]:[W1121 12:00:07.5 x.cpp:1] y", 7.5), ("I20261121 12:00:07 x", 7.0),
    ("2026-11-21 12:00:05 +0000 x", 5.0), ("2026-11-21T13:00:05+01 x", 5.0), ("2026-11-21 12:00:05 UTC x", 5.0),
    ("2026-11-21 12:00:05 - INFO", 5.0), ("[" + "p" * 58 + "] [abcdef] 2026-11-21T14:00:05.000000+02:00 x", 5.0),
    ("12:00:05 step 3", None), ("step 3 loss 2.0", None), ("2026-13-41 12:00:05 no day", None),
    ("x" * 100 + "2026-11-21 12:00:05", None), ("INFO 2026-11-21 12:00:05 step 3", 5.0),
    ("INFO:2026-11-21 12:00:05:train:step 3", 5.0), ("[INFO|trainer.py:2409] 2026-11-21 12:00:05,000 >> step 3", 5.0),
    ('{"level": "info", "time": "2026-11-21T12:00:05Z"}', 5.0),
    ('{"message": "a file of", "time": "2026-11-21T12:00:05Z"}', None),
    ("(Worker pid=7, ip=10.0.0.1) 2026-11-21 12:00:05 step 3", 5.0), ("0: 2026-11-21 12:00:05 step 3", 5.0),
    ("loaded the snapshot of 2020-01-01 00:00:00", None), ("data from I0101 00:00:00", None),
])  # fmt: skip
def test_the_time_of_a_line(line: str, after_noon: float | None) -> None:
    found = line_time(line, NOON)
    assert found == (None if after_noon is None else NOON + after_noon)


@table(
    ("stamp", "near", "written"),
    [
        ("I1231 23:59:58", (2027, 1, 1, 0, 0, 5), (2026, 12, 31, 23, 59, 58)),
        ("I0101 00:00:02", (2026, 12, 31, 23, 59, 59), (2027, 1, 1, 0, 0, 2)),
        ("I0229 12:00:00", (2028, 3, 1), (2028, 2, 29, 12)),
        # As c10 writes it: the month without a leading zero.
        ("[rank0]:[W227 10:54:51 ProcessGroupNCCL.cpp:1]", (2026, 3, 1), (2026, 2, 27, 10, 54, 51)),
        ("I20250227 12:34:56", (2026, 3, 1), (2025, 2, 27, 12, 34, 56)),
        ("I0229 12:00:00", (2029, 1, 1), (2028, 2, 29, 12)),
        ("I0229 12:00:00", (2026, 3, 1), None),
    ],
)
def test_a_stamp_without_a_year_is_of_the_nearest(
    stamp: str, near: tuple[int, int, int], written: tuple[int, int, int] | None
) -> None:
    expected = None if written is None else datetime(*written, tzinfo=UTC).timestamp()
    assert line_time(f"{stamp} step 3", datetime(*near, tzinfo=UTC).timestamp()) == expected


def test_lines_up_to_a_moment() -> None:
    lines = [
        "banner", "2026-11-21 12:00:01 one", "  detail", "2026-11-21 12:00:05 two", "  more",
        "2026-11-21 12:00:09 three", "tail",
    ]  # fmt: skip
    counts = [lines_by(lines, NOON + seconds) for seconds in (0, 1, 4.9, 5, 8, 9, 99)]
    assert counts == [0, 3, 3, 5, 5, 7, 7]
    assert lines_by(["no", "times"], NOON) is None
    assert lines_by([], NOON) is None
    new_year = datetime(2027, 1, 1, 0, 0, 5, tzinfo=UTC).timestamp()
    assert lines_by(["I1231 23:59:58 one"], new_year) == 1
