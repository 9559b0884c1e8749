"""From observations to alerts, with durations, hysteresis and cool-down. Pure; time is passed in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec import Struct

from gputui.core.units import UNKNOWN, count, metric_value
from gputui.recovery.watch.rules import Observation, Rule, SubjectKind


def sentence(rule: Rule, observation: Observation, subject: str) -> str:
    """The sentence of an alert. ``subject`` is its name: "GPU 3", a run's ID."""
    value = in_unit(observation.value, rule.unit)
    limit = in_unit(observation.limit, rule.unit)
    text = rule.sentence.format(subject=subject, value=value, limit=limit, text=observation.text)
    if rule.subject == "host":
        return text[:1].upper() + text[1:]
    return text


def in_unit(value: float | None, unit: str) -> str:
    """``95 %``, ``82 °C``, ``2.4 GB/h``; a number without a unit with four digits."""
    if value is None:
        return UNKNOWN
    if value != value or abs(value) == float("inf"):
        return metric_value(value)
    is_whole = float(value).is_integer()
    if not unit:
        if is_whole:
            return count(value)
        return metric_value(value)
    if unit in ("GB/h", "GiB") or (unit in ("%", "°C", "ms", "min") and abs(value) < 10 and not is_whole):
        return f"{value:.1f} {unit}"
    is_plain = unit == "×" or (unit in ("steps", "epochs") and not is_whole)
    if is_plain:
        return f"{value:g} {unit}"
    return f"{count(value)} {unit}"


class Key(NamedTuple):
    """The subject of an alert: a rule, and a GPU's UUID, a run's ID or "" for the host."""

    rule: str
    subject: SubjectKind
    subject_id: str


class RuleState(Struct):
    """The state of one rule for one subject. Times with an unknown value do not count.

    Attributes:
        seconds: time beyond the limit, or time back if the alert is raised.
        rest_seconds: the remaining cool-down.
        last: the zone of the newest value.
    """

    raised: bool = False
    seconds: float = 0.0
    rest_seconds: float = 0.0
    last: Literal["met", "well", "between", "unknown"] = "unknown"

    @property
    def is_quiet(self) -> bool:
        return not self.raised and self.seconds == 0 and self.rest_seconds == 0 and self.last != "met"


class AlertChange(Struct, frozen=True):
    """An alert that was raised, or cleared because of ``why``."""

    key: Key
    kind: Literal["raised", "cleared"]
    observation: Observation
    why: str = ""


@dataclass(slots=True)
class Engine:
    """The states of all rules for all subjects."""

    states: dict[Key, RuleState] = field(default_factory=dict)

    def evaluate(self, rule: Rule, key: Key, observation: Observation, elapsed: float) -> AlertChange | None:
        """Evaluate a rule at one moment, ``elapsed`` monotonic seconds after the previous one."""
        state = self.states.get(key)
        if state is None:
            if not rule.enabled or not observation.applies or not _is_beyond(observation, rule):
                return None  # the common case has no state
            state = self.states[key] = RuleState()
        state.rest_seconds = max(0.0, state.rest_seconds - elapsed)
        change = _step(state, rule, key, observation, elapsed)
        if state.is_quiet:
            del self.states[key]
        return change

    def raised(self) -> list[Key]:
        """The raised alerts."""
        return [key for key, state in self.states.items() if state.raised]

    def adopt(self, raised: Iterable[Key]) -> None:
        """Continue the raised alerts of a former agent."""
        self.states = {key: RuleState(raised=True) for key in raised}

    def forget(self, subject: SubjectKind, existing: Collection[str]) -> None:
        """Drop subjects that no longer exist and have no raised alert."""
        for key, state in list(self.states.items()):
            if key.subject == subject and not state.raised and key.subject_id not in existing:
                del self.states[key]


def _step(state: RuleState, rule: Rule, key: Key, observation: Observation, elapsed: float) -> AlertChange | None:
    if not rule.enabled or not observation.applies:
        why = "no longer applies" if rule.enabled else "the rule is off"
        return _clear(state, rule, key, observation, why)
    before = state.last
    state.last = "unknown"
    if observation.value is not None:
        state.last = zone(observation, rule)
    awaited = "well" if state.raised else "met"
    if state.last != awaited:
        # Time with an unknown value does not count, but time before it does.
        if state.last != "unknown":
            state.seconds = 0.0
        return None
    if before == awaited:
        state.seconds += elapsed
    if state.raised:
        is_back = state.seconds >= rule.clear_seconds
        if is_back:
            return _clear(state, rule, key, observation, "back to normal")
        return None
    if state.seconds < rule.for_seconds or state.rest_seconds > 0:
        return None
    state.raised = True
    state.seconds = 0.0
    return AlertChange(key, "raised", observation)


def _clear(state: RuleState, rule: Rule, key: Key, observation: Observation, why: str) -> AlertChange | None:
    was_raised = state.raised
    state.raised = False
    state.seconds = 0.0
    state.last = "unknown"
    if not was_raised:
        return None
    state.rest_seconds = rule.cooldown_seconds
    return AlertChange(key, "cleared", observation, why)


def zone(observation: Observation, rule: Rule) -> Literal["met", "well", "between"]:
    """The zone of a known value: beyond the limit, far enough from it to clear the alert, or between."""
    if _is_beyond(observation, rule):
        return "met"
    assert observation.value is not None
    if rule.below:
        is_well = observation.value >= observation.limit + rule.hysteresis
    else:
        # A hysteresis wider than the scale (2 with a limit of 1) must not keep an alert for ever.
        is_well = observation.value <= max(observation.limit - rule.hysteresis, 0.5 * observation.limit)
    if is_well:
        return "well"
    return "between"


def _is_beyond(observation: Observation, rule: Rule) -> bool:
    value = observation.value
    if value is None or math.isnan(value):
        return False
    if rule.below:
        return value < observation.limit
    return value > observation.limit
