"""From readings to alerts: durations, hysteresis and cool-down. Pure: time is passed in, and the state is a value that
an agent can store and its successor take up."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from gputui.alerts.moments import RuleReading
from gputui.alerts.resolved_rules import ResolvedRule
from gputui.alerts.rules import SubjectKind


class Key(NamedTuple):
    """What an alert is about: a rule and its subject (a GPU's UUID, a run's id, "" for the host)."""

    rule: str
    subject: SubjectKind
    subject_id: str


@dataclass(slots=True)
class RuleState:
    """The state of one rule for one subject. ``met_seconds``: for how long the value has been beyond its limit;
    ``well_seconds``: since when a raised one is well again; ``rest_seconds``: what is left of the cool-down. Times in
    which the value was unknown count in neither."""

    raised: bool = False
    met_seconds: float = 0.0
    well_seconds: float = 0.0
    rest_seconds: float = 0.0
    last: Literal["met", "well", "between", "unknown"] = "unknown"

    @property
    def is_quiet(self) -> bool:
        """Whether it may be forgotten."""
        return not self.raised and self.met_seconds == 0 and self.rest_seconds == 0 and self.last != "met"


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that was raised, or cleared because ``why``."""

    key: Key
    kind: Literal["raised", "cleared"]
    reading: RuleReading
    why: str = ""


@dataclass(slots=True)
class Engine:
    """The standing of every rule for every subject."""

    standings: dict[Key, RuleState] = field(default_factory=dict)

    def look(self, rule: ResolvedRule, key: Key, reading: RuleReading, elapsed_seconds: float) -> AlertChange | None:
        """One rule at one moment, ``elapsed_seconds`` (monotonic) after the moment before."""
        standing = self.standings.get(key)
        if standing is None:
            if not rule.enabled or not reading.applies or not _is_beyond(reading, rule):
                return None  # the common case leaves no trace
            standing = self.standings[key] = RuleState()
        standing.rest_seconds = max(0.0, standing.rest_seconds - elapsed_seconds)
        change = self._step(standing, rule, key, reading, elapsed_seconds)
        if standing.is_quiet:
            del self.standings[key]
        return change

    def _step(
        self, one: RuleState, rule: ResolvedRule, key: Key, reading: RuleReading, elapsed: float
    ) -> AlertChange | None:
        if not rule.enabled:
            return self._clear(one, rule, key, reading, "the rule is off")
        if not reading.applies:
            return self._clear(one, rule, key, reading, "no longer applies")
        if reading.value is None:
            one.last = "unknown"
            return None
        before, one.last = one.last, _place(reading, rule)
        if one.last == "met":
            one.well_seconds = 0.0
            # What came before an unknown stretch counts on, the stretch itself does not.
            one.met_seconds += elapsed if before == "met" else 0.0
            if not one.raised and one.met_seconds >= rule.for_seconds and one.rest_seconds == 0:
                one.raised = True
                return AlertChange(key, "raised", reading)
            return None
        one.met_seconds = 0.0
        if one.last == "between" or not one.raised:
            one.well_seconds = 0.0
            return None
        one.well_seconds += elapsed if before == "well" else 0.0
        if one.well_seconds >= rule.clear_seconds:
            return self._clear(one, rule, key, reading, "back to normal")
        return None

    def _clear(
        self, one: RuleState, rule: ResolvedRule, key: Key, reading: RuleReading, why: str
    ) -> AlertChange | None:
        was_raised = one.raised
        rest = rule.cooldown_seconds if was_raised else one.rest_seconds
        one.raised, one.met_seconds, one.well_seconds, one.rest_seconds, one.last = False, 0.0, 0.0, rest, "unknown"
        return AlertChange(key, "cleared", reading, why) if was_raised else None

    def raised(self) -> list[Key]:
        """What is raised now."""
        return [key for key, standing in self.standings.items() if standing.raised]

    def adopt(self, raised: Iterable[Key]) -> None:
        """Make the alerts that the store holds as raised the only ones: they are the truth."""
        wanted = set(raised)
        for key in wanted:
            self.standings.setdefault(key, RuleState()).raised = True
        for key, standing in list(self.standings.items()):
            if standing.raised and key not in wanted:
                del self.standings[key]

    def forget(self, subject: SubjectKind, known: Collection[str]) -> None:
        """Let go of subjects that are no more and have nothing raised."""
        for key, standing in list(self.standings.items()):
            if key.subject == subject and not standing.raised and key.subject_id not in known:
                del self.standings[key]

    # --- across agents

    def to_json(self) -> list[dict[str, Any]]:
        return [{**key._asdict(), **asdict(standing)} for key, standing in self.standings.items()]

    @classmethod
    def from_json(cls, entries: Any) -> Engine:
        """An engine that continues where another ended; what cannot be understood is left out. Nothing is known of the
        time in between, so that it counts for nothing."""
        engine = cls()
        for entry in entries if isinstance(entries, list) else []:
            found = _standing(entry)
            if found is not None:
                engine.standings[found[0]] = found[1]
        return engine


def _place(reading: RuleReading, rule: ResolvedRule) -> Literal["met", "well", "between"]:
    if _is_beyond(reading, rule):
        return "met"
    assert reading.value is not None
    back = reading.limit + rule.hysteresis if rule.rule.below else reading.limit - rule.hysteresis
    # Hysteresis wider than the scale (a limit of 1 with 2 to come back over) must not keep an alert for ever.
    if not rule.rule.below and reading.limit > 0:
        back = max(back, 0.5 * reading.limit)
    is_well = reading.value >= back if rule.rule.below else reading.value <= back
    return "well" if is_well else "between"


def _is_beyond(reading: RuleReading, rule: ResolvedRule) -> bool:
    value = reading.value
    if value is None or math.isnan(value):
        return False
    return value < reading.limit if rule.rule.below else value > reading.limit


def _standing(entry: Any) -> tuple[Key, RuleState] | None:
    if not isinstance(entry, Mapping):
        return None
    try:
        key = Key(str(entry["rule"]), entry["subject"], str(entry["subject_id"]))
        values = {one.name: entry[one.name] for one in fields(RuleState)}
        standing = RuleState(**values)
        standing.met_seconds, standing.well_seconds = float(standing.met_seconds), float(standing.well_seconds)
        standing.rest_seconds = float(standing.rest_seconds)
    except (KeyError, TypeError, ValueError):
        return None
    # How it stood since then is not known.
    standing.last = "unknown"
    return key, standing
