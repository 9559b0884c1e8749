"""A time as it is typed: what is meant by it, and what is refused in words."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gputui.tui.dialogs.typed_time import EXAMPLES, TypedTimeError, parse_moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 8, 20, 30, tzinfo=BERLIN).timestamp()  # a Saturday


def meant(text: str, now: float = NOW) -> str:
    return datetime.fromtimestamp(parse_moment(text, now, BERLIN), BERLIN).strftime("%Y-%m-%d %H:%M:%S %z")


def test_what_is_meant() -> None:
    moments = {
        "03:12": "2026-11-21 03:12:00",
        " 3:12 ": "2026-11-21 03:12:00",
        "03:12:44": "2026-11-21 03:12:44",
        "3:12am": "2026-11-21 03:12:00",
        "3 AM": "2026-11-21 03:00:00",
        "12am": "2026-11-21 00:00:00",
        "12pm": "2026-11-20 12:00:00",
        "9:00": "2026-11-20 09:00:00",  # today's is still to come
        "today 3:12": "2026-11-21 03:12:00",
        "yesterday": "2026-11-20 00:00:00",
        "mon 3:12": "2026-11-16 03:12:00",
        "saturday 3:12": "2026-11-21 03:12:00",
        "sat 23:00": "2026-11-14 23:00:00",
        "2026-11-20 03:12": "2026-11-20 03:12:00",
        "2026-11-20T03:12:09.5Z": "2026-11-20 04:12:09",
        "2026-11-20": "2026-11-20 00:00:00",
        "11-20 03:12": "2026-11-20 03:12:00",
        "12-24 18:00": "2025-12-24 18:00:00",
        "- 20 min": "2026-11-21 08:00:30",
        "-1h30m": "2026-11-21 06:50:30",
        "-1.5h": "2026-11-21 06:50:30",
        "-2d": "2026-11-19 08:20:30",
        "20 minutes ago": "2026-11-21 08:00:30",
        "now": "2026-11-21 08:20:30",
    }
    assert {typed: meant(typed) for typed in moments} == {typed: f"{text} +0100" for typed, text in moments.items()}
    for example in EXAMPLES.split(", "):
        assert parse_moment(example, NOW, BERLIN) < NOW, example


def test_what_is_refused() -> None:
    for typed, why in {
        "": "type a time, such as",
        "soon": "'soon' is not a time; try",
        "3": "'3' is not a time; try",
        "25:00": "'25:00' is not a time of day",
        "13:00pm": "hours go from 1 to 12",
        "2026-02-30 10:00": "is no day of the calendar",
        "2026-11-22 10:00": "is still to come",
        "-20x": "is no stretch of time",
        "-": "is not a time; try",
    }.items():
        with pytest.raises(TypedTimeError, match=why):
            meant(typed)


def test_a_time_that_the_clocks_skipped_is_refused() -> None:
    spring = datetime(2026, 3, 29, 12, 0, tzinfo=BERLIN).timestamp()
    with pytest.raises(TypedTimeError, match="02:30 did not exist on 29 Mar 2026: the clocks were put forward"):
        meant("2:30", spring)
    assert meant("yesterday 2:30", spring) == "2026-03-28 02:30:00 +0100"
    assert meant("3:00", spring) == "2026-03-29 03:00:00 +0200"


def test_of_a_time_shown_twice_the_later_one_that_has_passed_is_meant() -> None:
    noon = datetime(2026, 10, 25, 12, 0, tzinfo=BERLIN).timestamp()
    assert meant("2:30", noon) == "2026-10-25 02:30:00 +0100"
    between = datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN, fold=0).timestamp()
    assert meant("2:30", between) == "2026-10-25 02:30:00 +0200"


def test_without_a_zone_the_machines_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    at = parse_moment("3:12", NOW)
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) == "2026-11-20 03:12"
    with pytest.raises(TypedTimeError, match="did not exist"):
        parse_moment("2026-03-08 2:30", NOW)
