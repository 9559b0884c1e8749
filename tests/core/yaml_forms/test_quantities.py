"""Sizes and durations as a person writes them."""

from __future__ import annotations

import re

from gputui.core.yaml_forms.quantities import DURATION_PATTERN, parse_duration, parse_size


def test_a_size_has_a_unit() -> None:
    sizes = {"0 B": 0, "1.5 KiB": 1536, "1 MiB": 1 << 20, "80 GiB": 80 << 30, "1.5GB": 1_500_000_000, "80": None}
    assert {text: parse_size(text) for text in sizes} == sizes


def test_a_duration_may_have_several_units() -> None:
    durations = {
        "90s": 90, "5 min": 300, "1h30m": 5400, " 1h 30m ": 5400, "1H30MIN": 5400, "1.5h": 5400, "1d12h": 129_600,
        "0s": 0, "": None, "90": None, "1h30": None, "1x": None, "-1h": None, "h": None,
    }  # fmt: skip
    assert {text: parse_duration(text) for text in durations} == durations
    for text, seconds in durations.items():
        assert bool(re.search(DURATION_PATTERN, text)) is (seconds is not None), text
