"""What may be changed of the rules, and what every mistake is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.alerts.in_force import changed, standard
from gputui.alerts.overrides import AlertsError, parse_overrides, parse_seconds
from gputui.alerts.rules import RULES
from gputui.alerts.schedules import RateSchedule
from gputui.profiles.alert_file import load_alerts, read_alerts
from gputui.profiles.problems import ProfileError

FILE = Path("alerts.yaml")


def test_what_is_left_out_stays_the_standard() -> None:
    found = read_alerts("gpu_hot: {above_celsius: 80, for: 2 min, severity: error}\nxid: off\ndisk: on\n", FILE)
    rules = changed(standard(), found.rules, "alerts.yaml")
    hot, shipped = rules["gpu_hot"], standard()["gpu_hot"]
    assert (hot.limits["above_celsius"], hot.limits["margin_celsius"]) == (80.0, 5.0)
    assert (hot.for_seconds, hot.severity, hot.cooldown_seconds) == (120.0, "error", shipped.cooldown_seconds)
    assert hot.source("above_celsius") == "alerts.yaml" and hot.source("margin_celsius") == "standard"
    assert not rules["xid"].enabled and rules["disk"].enabled
    assert rules["shm"] is not None and rules["shm"].sources == {}


def test_a_profile_goes_before_the_machine() -> None:
    machine = changed(standard(), read_alerts("slow_steps: off\n", FILE).rules, "alerts.yaml")
    own = parse_overrides({"slow_steps": {"times_median": 3}}, "profile")
    rule = changed(machine, own.rules, "profile")["slow_steps"]
    assert rule.enabled and rule.limits["times_median"] == 3.0
    assert rule.sources == {"enabled": "profile", "times_median": "profile"}


def test_nothing_there_changes_nothing(tmp_path: Path) -> None:
    assert load_alerts(tmp_path / "alerts.yaml").rules == {}
    assert read_alerts("# nothing yet\n", FILE).rules == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu_hott: off", "alerts.yaml:1: gpu_hott: unknown rule; did you mean gpu_hot?"),
        (
            "gpu_hot: {abov_celsius: 80}",
            "alerts.yaml:1: gpu_hot.abov_celsius: unknown key; did you mean above_celsius?",
        ),
        ("gpu_hot:\n  above_celsius: hot", "alerts.yaml:2: gpu_hot.above_celsius: expected a number from 20 to 150"),
        ("gpu_hot:\n  above_celsius: 500", "alerts.yaml:2: gpu_hot.above_celsius: expected a number from 20 to 150"),
        ("gpu_hot: {for: soon}", "expected seconds, or a time such as 90 s, 5 min or 2 h, of at most 30 days"),
        ("gpu_hot: {severity: eror}", "expected one of info, warning, error; did you mean error?"),
        ("gpu_hot: 80", "alerts.yaml:1: gpu_hot: expected off, or a mapping of what is changed"),
        ("gpu_hot: off\ngpu_hot: on", "alerts.yaml:2: gpu_hot: the key is given twice"),
        ("- gpu_hot", "alerts.yaml: expected a mapping from rules to what is changed of them"),
        ("notify: {comand: [mail]}", "alerts.yaml:1: notify.comand: unknown key; did you mean command?"),
        ("notify: {command: mail me}", "expected a list of words such as [notify-send, gputui]"),
        ("notify: {webhook: 'ftp://x'}", "expected an address that begins with http:// or https://"),
        ("lr_off_schedule: {schedule: cosine}", "is a matter of a profile, not of the machine"),
        ("gpu_hot: {\n", "alerts.yaml:"),
    ],
)
def test_a_mistake_names_its_line_and_what_was_meant(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_alerts(text, FILE)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"disk": "off"}, "disk: is about the whole machine; change it in alerts.yaml"),
        ({"notify": {"command": ["x"]}}, "notify: unknown rule"),
        ({"lr_off_schedule": {"schedule": "cosin"}}, "expected one of constant, linear, cosine"),
        (
            {"lr_off_schedule": {"schedule": {"shape": "linear", "warmup_steps": 1.5}}},
            "expected a whole number of steps",
        ),
        (
            {"lr_off_schedule": {"schedule": {"shape": "linear", "peek": 1}}},
            "lr_off_schedule.schedule.peek: unknown key",
        ),
    ],
)
def test_a_profile_may_not(mapping: dict[str, object], said: str) -> None:
    with pytest.raises(AlertsError) as caught:
        parse_overrides(mapping, "profile")
    assert said in str(caught.value)


def test_an_address_that_is_wrong_is_not_shown() -> None:
    with pytest.raises(ProfileError) as caught:
        read_alerts("notify: {webhook: 'htps://hooks.example.org/s3cret'}", FILE)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (90, 90.0), ("90", None), ("90 s", 90.0), ("5min", 300.0), ("5 m", 300.0), ("1.5 h", 5400.0), ("2d", 172_800.0),
        ("31 d", None), (-1, None), (True, None), (float("nan"), None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_times(given: object, seconds: float | None) -> None:
    assert parse_seconds(given) == seconds


def test_a_schedule_by_its_shape_alone() -> None:
    found = parse_overrides({"lr_off_schedule": {"schedule": "linear", "above_percent": 5}}, "profile")
    assert found.schedule == RateSchedule("linear") and found.rules["lr_off_schedule"]["above_percent"] == 5.0


def test_every_threshold_may_be_given_its_own_default() -> None:
    for rule in RULES.values():
        given = {each.name: each.default for each in rule.thresholds}
        assert parse_overrides({rule.id: given}, "machine").rules[rule.id].items() >= given.items()
