"""Overrides of rules, and the message of every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import read_alerts
from gputui.profiles.profile_file import read_profile
from gputui.recovery.watch.overrides import overrides_from, parse_seconds, with_overrides
from gputui.recovery.watch.rules import RULES
from tests.tables import table

FILE = Path("alerts.yaml")


def of_machine(text: str) -> object:
    return read_alerts(text, FILE)


def of_profile(text: str) -> object:
    return read_profile(f"script: a.py\nalerts: {text}", FILE)


def test_what_is_left_out_stays_the_standard_and_a_profile_goes_before_the_machine() -> None:
    text = "gpu_hot: {above_celsius: 80, for: 2 min, severity: error}\nxid: off\ndisk: on\nslow_steps: off\n"
    machine = with_overrides(RULES, read_alerts(text, FILE).rules, "alerts.yaml")
    hot = machine["gpu_hot"]
    shipped = RULES["gpu_hot"]
    assert (hot.limits["above_celsius"], hot.limits["margin_celsius"]) == (80.0, 5.0)
    assert (hot.for_seconds, hot.severity, hot.cooldown_seconds) == (120.0, "error", shipped.cooldown_seconds)
    assert hot.sources["above_celsius"] == "alerts.yaml"
    assert "margin_celsius" not in hot.sources
    assert not machine["xid"].enabled
    assert machine["disk"].enabled
    assert machine["shm"].sources == {}
    rules = overrides_from({"slow_steps": {"times_median": 3}})
    rule = with_overrides(machine, rules.rules, "profile")["slow_steps"]
    assert rule.enabled
    assert rule.limits["times_median"] == 3.0
    assert rule.sources == {"enabled": "profile", "times_median": "profile"}


@table("read, text, line, key, meant", [
    (of_machine, "gpu_hott: off", 1, "gpu_hott", "gpu_hot"),
    (of_machine, "gpu_hot: {abov_celsius: 80}", 1, "gpu_hot.abov_celsius", "above_celsius"),
    (of_machine, "gpu_hot:\n  above_celsius: hot", 2, "gpu_hot.above_celsius", None),
    (of_machine, "gpu_hot:\n  above_celsius: 500", 2, "gpu_hot.above_celsius", None),
    (of_machine, "gpu_hot: {for: soon}", 1, "gpu_hot.for", None), (of_machine, "gpu_hot: 80", 1, "gpu_hot", None),
    (of_machine, "gpu_hot: {severity: eror}", 1, "gpu_hot.severity", "error"), (of_machine, "- gpu_hot", 1, "", None),
    (of_machine, "gpu_hot: off\ngpu_hot: on", 2, "gpu_hot", None),
    (of_machine, "lr_off_schedule: {schedule: cosine}", 1, "lr_off_schedule.schedule", None),
    (of_machine, "gpu_hot: {\n", 2, "", None), (of_profile, "{disk: off}", 2, "alerts.disk", None),
    (of_profile, "{lr_off_schedule: {schedule: cosin}}", 2, "alerts.lr_off_schedule.schedule", "cosine"),
    (of_profile, "{lr_off_schedule: {schedule: {peak: 1}}}", 2, "alerts.lr_off_schedule.schedule", None),
])  # fmt: skip
def test_a_mistake_names_its_line_and_what_was_meant(
    read: Callable[[str], object], text: str, line: int, key: str, meant: str | None
) -> None:
    with pytest.raises(ProfileError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.key, problem.nearest) == (line, key, meant)
    assert "s3cret" not in str(caught.value)


@table("value, seconds", [
    (90, 90.0), ("90", None), ("90 s", 90.0), ("5min", 300.0), ("5 m", 300.0), ("1.5 h", 5400.0), ("2d", 172_800.0),
    ("31 d", None), (-1, None), (True, None), (float("nan"), None), ("", None), (None, None),
])  # fmt: skip
def test_times(value: object, seconds: float | None) -> None:
    assert parse_seconds(value) == seconds
