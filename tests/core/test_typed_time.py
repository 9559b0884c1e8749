"""A time as it is typed: what is meant by it, and what is refused."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gputui.core.typed_time import COMING, EXAMPLES, TypedTimeError, parse_begin, parse_moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 8, 20, 30, tzinfo=BERLIN).timestamp()


def meant(text: str, now: float = NOW) -> str:
    return datetime.fromtimestamp(parse_moment(text, now, BERLIN), BERLIN).strftime("%Y-%m-%d %H:%M:%S %z")


def test_what_is_meant() -> None:
    moments = {
        "03:12": "2026-11-21 03:12:00",
        " 3:12 ": "2026-11-21 03:12:00",
        "03:12:44": "2026-11-21 03:12:44",
        "9:00": "2026-11-20 09:00:00",  # today's is still to come
        "2026-11-20 03:12": "2026-11-20 03:12:00",
        "2026-11-20T03:12:09.5Z": "2026-11-20 04:12:09",
        "2026-11-20": "2026-11-20 00:00:00",
        "-20m": "2026-11-21 08:00:30",
        "- 1h 30M": "2026-11-21 06:50:30",
        "-1.5h": "2026-11-21 06:50:30",
        "-2d": "2026-11-19 08:20:30",
    }
    assert {typed: meant(typed) for typed in moments} == {typed: f"{text} +0100" for typed, text in moments.items()}
    for example in EXAMPLES.split(", "):
        assert parse_moment(example, NOW, BERLIN) < NOW, example


def test_what_is_refused() -> None:
    for typed in ("", "soon", "3", "25:00", "2026-02-30 10:00", "2026-11-22 10:00", "-20x", "-", "-99999999w"):
        with pytest.raises(TypedTimeError):
            meant(typed)


def test_a_moment_to_come() -> None:
    moments = {
        "22:00": "2026-11-21 22:00:00",
        "8:00": "2026-11-22 08:00:00",  # today's is over
        "in 2h": "2026-11-21 10:20:30",
        "in 1h 30m": "2026-11-21 09:50:30",
        "2026-12-01 22:00": "2026-12-01 22:00:00",
    }
    for typed, text in moments.items():
        at = datetime.fromtimestamp(parse_begin(typed, NOW, BERLIN), BERLIN)
        assert at.strftime("%Y-%m-%d %H:%M:%S") == text, typed
    for example in COMING.split(", "):
        assert parse_begin(example, NOW, BERLIN) > NOW, example
    for typed in ("", "soon", "-20m", "in", "in 2x", "2026-11-20 22:00", "in 0s"):
        with pytest.raises(TypedTimeError):
            parse_begin(typed, NOW, BERLIN)


def test_without_a_zone_the_machines_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    at = parse_moment("3:12", NOW)
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) == "2026-11-20 03:12"
