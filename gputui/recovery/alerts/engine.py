"""The engine: readings to alerts, with durations, hysteresis and cool-down. Pure; time is passed in, and the state is a
value that can be stored."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from gputui.recovery.alerts.moments import RuleReading
from gputui.recovery.alerts.resolved_rules import ResolvedRule
from gputui.recovery.alerts.rules import SubjectKind


class Key(NamedTuple):
    """The subject of an alert: a rule, and a GPU's UUID, a run's ID or "" for the host."""

    rule: str
    subject: SubjectKind
    subject_id: str


@dataclass(slots=True)
class RuleState:
    """The state of one rule for one subject. ``met_seconds``: time beyond the limit; ``well_seconds``: time back since
    it was raised; ``rest_seconds``: the remaining cool-down. Times with an unknown value do not count."""

    raised: bool = False
    met_seconds: float = 0.0
    well_seconds: float = 0.0
    rest_seconds: float = 0.0
    last: Literal["met", "well", "between", "unknown"] = "unknown"

    @property
    def is_quiet(self) -> bool:
        """Whether the state can be dropped."""
        return not self.raised and self.met_seconds == 0 and self.rest_seconds == 0 and self.last != "met"


class AlertChange(Struct, frozen=True):
    """An alert that was raised, or cleared because of ``why``."""

    key: Key
    kind: Literal["raised", "cleared"]
    reading: RuleReading
    why: str = ""


@dataclass(slots=True)
class Engine:
    """The states of all rules for all subjects."""

    states: dict[Key, RuleState] = field(default_factory=dict)

    def evaluate(
        self, rule: ResolvedRule, key: Key, reading: RuleReading, elapsed_seconds: float
    ) -> AlertChange | None:
        """Evaluate a rule at one moment, ``elapsed_seconds`` (monotonic) after the previous one."""
        state = self.states.get(key)
        if state is None:
            if not rule.enabled or not reading.applies or not _is_beyond(reading, rule):
                return None  # the common case has no state
            state = self.states[key] = RuleState()
        state.rest_seconds = max(0.0, state.rest_seconds - elapsed_seconds)
        change = self._step(state, rule, key, reading, elapsed_seconds)
        if state.is_quiet:
            del self.states[key]
        return change

    def _step(
        self, state: RuleState, rule: ResolvedRule, key: Key, reading: RuleReading, elapsed: float
    ) -> AlertChange | None:
        if not rule.enabled:
            return self._clear(state, rule, key, reading, "the rule is off")
        if not reading.applies:
            return self._clear(state, rule, key, reading, "no longer applies")
        if reading.value is None:
            state.last = "unknown"
            return None
        before, state.last = state.last, _zone(reading, rule)
        if state.last == "met":
            state.well_seconds = 0.0
            # Time with an unknown value does not count, but time before it does.
            state.met_seconds += elapsed if before == "met" else 0.0
            if not state.raised and state.met_seconds >= rule.for_seconds and state.rest_seconds == 0:
                state.raised = True
                return AlertChange(key, "raised", reading)
            return None
        state.met_seconds = 0.0
        if state.last == "between" or not state.raised:
            state.well_seconds = 0.0
            return None
        state.well_seconds += elapsed if before == "well" else 0.0
        if state.well_seconds >= rule.clear_seconds:
            return self._clear(state, rule, key, reading, "back to normal")
        return None

    def _clear(
        self, state: RuleState, rule: ResolvedRule, key: Key, reading: RuleReading, why: str
    ) -> AlertChange | None:
        was_raised = state.raised
        rest = rule.cooldown_seconds if was_raised else state.rest_seconds
        state.raised, state.met_seconds, state.well_seconds, state.rest_seconds, state.last = (
            False,
            0.0,
            0.0,
            rest,
            "unknown",
        )
        return AlertChange(key, "cleared", reading, why) if was_raised else None

    def raised(self) -> list[Key]:
        """The raised alerts."""
        return [key for key, state in self.states.items() if state.raised]

    def adopt(self, raised: Iterable[Key]) -> None:
        """Make the stored alerts the only raised ones."""
        wanted = set(raised)
        for key in wanted:
            self.states.setdefault(key, RuleState()).raised = True
        for key, state in list(self.states.items()):
            if state.raised and key not in wanted:
                del self.states[key]

    def forget(self, subject: SubjectKind, known: Collection[str]) -> None:
        """Drop subjects that no longer exist and have no raised alert."""
        for key, state in list(self.states.items()):
            if key.subject == subject and not state.raised and key.subject_id not in known:
                del self.states[key]

    # --- across agents

    def to_json(self) -> list[dict[str, Any]]:
        return [{**key._asdict(), **asdict(state)} for key, state in self.states.items()]

    @classmethod
    def from_json(cls, entries: Any) -> Engine:
        """An engine that continues a stored state; invalid entries are ignored. The time in between does not count."""
        engine = cls()
        for entry in entries if isinstance(entries, list) else []:
            found = _state_of(entry)
            if found is not None:
                engine.states[found[0]] = found[1]
        return engine


def _zone(reading: RuleReading, rule: ResolvedRule) -> Literal["met", "well", "between"]:
    if _is_beyond(reading, rule):
        return "met"
    assert reading.value is not None
    back = reading.limit + rule.hysteresis if rule.rule.below else reading.limit - rule.hysteresis
    # A hysteresis wider than the scale (2 with a limit of 1) must not keep an alert for ever.
    if not rule.rule.below and reading.limit > 0:
        back = max(back, 0.5 * reading.limit)
    is_well = reading.value >= back if rule.rule.below else reading.value <= back
    return "well" if is_well else "between"


def _is_beyond(reading: RuleReading, rule: ResolvedRule) -> bool:
    value = reading.value
    if value is None or math.isnan(value):
        return False
    return value < reading.limit if rule.rule.below else value > reading.limit


def _state_of(entry: Any) -> tuple[Key, RuleState] | None:
    if not isinstance(entry, Mapping):
        return None
    try:
        key = Key(str(entry["rule"]), entry["subject"], str(entry["subject_id"]))
        values = {item.name: entry[item.name] for item in fields(RuleState)}
        state = RuleState(**values)
        state.met_seconds, state.well_seconds = float(state.met_seconds), float(state.well_seconds)
        state.rest_seconds = float(state.rest_seconds)
    except (KeyError, TypeError, ValueError):
        return None
    # The value since then is unknown.
    state.last = "unknown"
    return key, state
