"""Overrides of alert rules as pydantic models: ``alerts.yaml`` of a machine, ``alerts:`` of a profile.

    gpu_hot: {above_celsius: 80, for: 2 min}
    shm: off

A rule has ``off``, or its thresholds, ``for``, ``clear_after``, ``cooldown``, ``hysteresis`` and
``severity``. Only a profile has the schedule of a learning rate.
`gputui.recovery.watch.overrides.overrides_from` reads a valid one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, create_model

from gputui.core.yaml_forms.forms import UNBOUNDED, Model, expected, problem, within
from gputui.recovery.watch.learning_rate import Shape
from gputui.recovery.watch.overrides import parse_seconds
from gputui.recovery.watch.rules import RULES, Rule, Severity

OF_MACHINE = "machine"
"""The validation context of ``alerts.yaml``; a profile has none."""


def _duration(seconds: object) -> object:
    if parse_seconds(seconds) is None:
        raise expected("seconds, or a time such as 90 s, 5 min or 2 h, of at most 30 days")
    return seconds


Duration = Annotated[Any, BeforeValidator(_duration)]


class _RuleForm(Model):
    for_: Duration = Field(None, alias="for", description="time beyond the limit, such as 2 min")
    clear_after: Duration = Field(None, description="time back until the alert is cleared")
    cooldown: Duration = Field(None, description="time until it can be raised again")
    hysteresis: Annotated[float, within(0, UNBOUNDED)] = Field(0.0, description="distance to come back")
    severity: Severity = Field("info", description="how bad it is")


class ScheduleForm(Model):
    """An expected learning-rate schedule; see `gputui.recovery.watch.learning_rate.RateSchedule`."""

    shape: Shape = Field(description="the decay after the warm-up")
    peak: Annotated[float, within(0)] = Field(0.0, description="the highest rate; else the run's parameter")
    final: Annotated[float, within(0)] = Field(0.0, description="the rate at the end")
    warmup_steps: Annotated[int, within(0, whole=True)] = Field(0, description="steps of the rise")
    total_steps: Annotated[int, within(0, whole=True)] = Field(0, description="else as reported")


class _Rules(Model):
    called = "rule"


def _schedule(schedule: object, info: ValidationInfo) -> object:
    """Expand ``schedule: cosine``."""
    if info.context == OF_MACHINE:
        raise problem("is a matter of a profile, not of the machine")
    if isinstance(schedule, str):
        return {"shape": schedule}
    return schedule


def _rule(rule: Rule) -> Any:
    """The type of the overrides of one rule: a model with a key for each of its thresholds."""
    keys: dict[str, Any] = {
        threshold.name: (Annotated[float, within(threshold.least, threshold.most)], threshold.default)
        for threshold in rule.thresholds
    }
    if rule.id == "lr_off_schedule":
        keys["schedule"] = (Annotated[ScheduleForm, BeforeValidator(_schedule)] | None, None)

    def check(thresholds: object, info: ValidationInfo) -> object:
        if rule.subject == "host" and info.context != OF_MACHINE:
            raise problem("is about the whole machine; change it in alerts.yaml")
        if thresholds in ("off", "on") or isinstance(thresholds, bool):
            return {}
        if not isinstance(thresholds, dict):
            raise expected("off, or a mapping of what is changed")
        return thresholds

    return Annotated[create_model(rule.id, __base__=_RuleForm, **keys), BeforeValidator(check)]


# A key for each rule that exists.
_KEYS: dict[str, Any] = {name: (_rule(rule), None) for name, rule in RULES.items()}
AlertsForm = create_model("AlertsForm", __base__=_Rules, **_KEYS)
