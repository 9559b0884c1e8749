"""The engine: observations to alerts, with durations, hysteresis and cool-down. Pure; time is passed
in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import UNKNOWN, count, metric_value
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.recovery.watch.course import RateSchedule
from gputui.recovery.watch.rules import RULES, RUN_RULE_IDS, Observation, Rule, RuleSet, Severity, SubjectKind

STANDARD = "standard"
MAX_SECONDS = 30 * 86400.0
# The keys of files, by the fields of a rule.
_TIMES = {"for_seconds": "for", "clear_seconds": "clear_after", "cooldown_seconds": "cooldown"}
_FIELDS = {key: name for name, key in _TIMES.items()}

Override = Mapping[str, Any]
"""The changes to one rule: a threshold's name, or a field of `Rule`."""


class Delivery(Struct, frozen=True):
    """Delivery of alerts outside the screen, by a command or a webhook, from a severity on."""

    command: tuple[str, ...] = ()
    webhook: str | None = None
    severity: Severity = "warning"


class Overrides(Struct, frozen=True):
    """The overrides of one file."""

    rules: Mapping[str, Override] = msgspec.field(default_factory=dict)
    delivery: Delivery | None = None
    schedule: RateSchedule | None = None


def of_profile(alerts: str | Mapping[str, Any] | None) -> Overrides:
    """The overrides of a profile: a mapping, ``standard`` or ``off``. Raises ValueError."""
    if isinstance(alerts, Mapping):
        return overrides_from(alerts)
    is_off = alerts is None or alerts == "off"
    return Overrides({name: {"enabled": False} for name in RUN_RULE_IDS if is_off})


def overrides_from(mapping: Mapping[str, Any]) -> Overrides:
    """The overrides in a valid mapping. Raises ValueError for an invalid one."""
    if unknown := mapping.keys() - RULES.keys() - {"notify"}:
        raise ValueError(f"unknown alert rules: {', '.join(sorted(map(str, unknown)))}")
    try:
        rules = {name: _override(given) for name, given in mapping.items() if name != "notify"}
        notify, own = mapping.get("notify"), mapping.get("lr_off_schedule")
        schedule = own.get("schedule") if isinstance(own, Mapping) else None
        schedule = {"shape": schedule} if isinstance(schedule, str) else schedule
        return Overrides(
            rules,
            None if notify is None else msgspec.convert(dict(notify), Delivery),
            None if schedule is None else RateSchedule(**schedule),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the alert rules are not understood: {error!r}") from error


def _override(given: object) -> Override:
    if not isinstance(given, Mapping):
        return {"enabled": given in (True, "on")}
    found: dict[str, Any] = {"enabled": True} if set(given) - {"schedule"} else {}
    for key, value in given.items():
        if key in _FIELDS:
            found[_FIELDS[key]] = parse_seconds(value)
        elif key != "schedule":
            found[key] = value if key == "severity" else float(value)
    return found


def parse_seconds(value: object) -> float | None:
    """A duration in seconds: a number, or text such as ``90 s``, ``2h``; None if it is none."""
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return float(seconds) if 0 <= seconds <= MAX_SECONDS else None


def with_overrides(rules: RuleSet, overrides: Mapping[str, Override], source: str) -> RuleSet:
    """The rules with the overrides of one source: the name of a file, or ``profile``."""
    changed = {}
    for name, override in overrides.items():
        rule = rules[name]
        if not rule.enabled and override.get("enabled", True):
            # An override that does not mention it switches a rule on.
            override = {"enabled": True, **override}
        limits = {key: float(override.get(key, value)) for key, value in rule.limits.items()}
        changed[name] = replace(
            rule,
            limits=limits,
            sources={**rule.sources, **dict.fromkeys(override, source)},
            **{key: value for key, value in override.items() if key not in limits},
        )
    return {**rules, **changed}


# --- in words ---------------------------------------------------------------------------------


def sentence(rule: Rule, seen: Observation, subject: str) -> str:
    """The sentence of an alert. ``subject`` is its name: "GPU 3", a run's ID."""
    value, limit = in_unit(seen.value, rule.unit), in_unit(seen.limit, rule.unit)
    text = rule.sentence.format(subject=subject, value=value, limit=limit, text=seen.text)
    return text[:1].upper() + text[1:] if rule.subject == "host" else text


def in_unit(value: float | None, unit: str) -> str:
    """``95 %``, ``82 °C``, ``2.4 GB/h``; a number without a unit with four digits."""
    if value is None:
        return UNKNOWN
    if value != value or abs(value) == float("inf"):
        return metric_value(value)
    is_whole = float(value).is_integer()
    if not unit:
        return count(value) if is_whole else metric_value(value)
    if unit in ("GB/h", "GiB") or (unit in ("%", "°C", "ms", "min") and abs(value) < 10 and not is_whole):
        return f"{value:.1f} {unit}"
    is_plain = unit == "×" or (unit in ("steps", "epochs") and not is_whole)
    return f"{value:g} {unit}" if is_plain else f"{count(value)} {unit}"


def thresholds(rule: Rule) -> str:
    """The thresholds by name: ``above_celsius 85 °C, margin_celsius 5 °C``; empty without any."""
    return ", ".join(f"{each.name} {in_unit(rule.limits[each.name], each.unit)}" for each in rule.thresholds)


def changed_by(rule: Rule) -> str:
    """The sources of overrides: ``alerts.yaml: above_celsius, for``; ``standard`` without any."""
    by: dict[str, list[str]] = {}
    for name, source in rule.sources.items():
        if name != "enabled" or not rule.enabled:
            by.setdefault(source, []).append("off" if name == "enabled" else _TIMES.get(name, name))
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in by.items()) or STANDARD


class Key(NamedTuple):
    """The subject of an alert: a rule, and a GPU's UUID, a run's ID or "" for the host."""

    rule: str
    subject: SubjectKind
    subject_id: str


class RuleState(Struct):
    """The state of one rule for one subject.

    ``seconds``: time beyond the limit, or time back if the alert is raised; ``rest_seconds``: the
    remaining cool-down. Times with an unknown value do not count.
    """

    raised: bool = False
    seconds: float = 0.0
    rest_seconds: float = 0.0
    last: Literal["met", "well", "between", "unknown"] = "unknown"

    @property
    def is_quiet(self) -> bool:
        """Whether the state can be dropped."""
        return not self.raised and self.seconds == 0 and self.rest_seconds == 0 and self.last != "met"


class AlertChange(Struct, frozen=True):
    """An alert that was raised, or cleared because of ``why``."""

    key: Key
    kind: Literal["raised", "cleared"]
    seen: Observation
    why: str = ""


@dataclass(slots=True)
class Engine:
    """The states of all rules for all subjects."""

    states: dict[Key, RuleState] = field(default_factory=dict)

    def evaluate(self, rule: Rule, key: Key, seen: Observation, elapsed: float) -> AlertChange | None:
        """Evaluate a rule at one moment, ``elapsed`` monotonic seconds after the previous one."""
        state = self.states.get(key)
        if state is None:
            if not rule.enabled or not seen.applies or not _is_beyond(seen, rule):
                return None  # the common case has no state
            state = self.states[key] = RuleState()
        state.rest_seconds = max(0.0, state.rest_seconds - elapsed)
        change = _step(state, rule, key, seen, elapsed)
        if state.is_quiet:
            del self.states[key]
        return change

    def raised(self) -> list[Key]:
        """The raised alerts."""
        return [key for key, state in self.states.items() if state.raised]

    def adopt(self, raised: Iterable[Key]) -> None:
        """Continue the raised alerts of a former agent."""
        self.states = {key: RuleState(raised=True) for key in raised}

    def forget(self, subject: SubjectKind, known: Collection[str]) -> None:
        """Drop subjects that no longer exist and have no raised alert."""
        for key, state in list(self.states.items()):
            if key.subject == subject and not state.raised and key.subject_id not in known:
                del self.states[key]


def _step(state: RuleState, rule: Rule, key: Key, seen: Observation, elapsed: float) -> AlertChange | None:
    if not rule.enabled or not seen.applies:
        return _clear(state, rule, key, seen, "no longer applies" if rule.enabled else "the rule is off")
    before, state.last = state.last, "unknown" if seen.value is None else _zone(seen, rule)
    awaited = "well" if state.raised else "met"
    if state.last != awaited:
        # Time with an unknown value does not count, but time before it does.
        state.seconds = state.seconds if state.last == "unknown" else 0.0
        return None
    state.seconds += elapsed if before == awaited else 0.0
    if state.raised:
        is_back = state.seconds >= rule.clear_seconds
        return _clear(state, rule, key, seen, "back to normal") if is_back else None
    if state.seconds < rule.for_seconds or state.rest_seconds > 0:
        return None
    state.raised, state.seconds = True, 0.0
    return AlertChange(key, "raised", seen)


def _clear(state: RuleState, rule: Rule, key: Key, seen: Observation, why: str) -> AlertChange | None:
    was_raised = state.raised
    rest = rule.cooldown_seconds if was_raised else state.rest_seconds
    state.raised, state.seconds, state.rest_seconds, state.last = False, 0.0, rest, "unknown"
    return AlertChange(key, "cleared", seen, why) if was_raised else None


def _zone(seen: Observation, rule: Rule) -> Literal["met", "well", "between"]:
    if _is_beyond(seen, rule):
        return "met"
    assert seen.value is not None
    if rule.below:
        is_well = seen.value >= seen.limit + rule.hysteresis
    else:
        # A hysteresis wider than the scale (2 with a limit of 1) must not keep an alert for ever.
        is_well = seen.value <= max(seen.limit - rule.hysteresis, 0.5 * seen.limit)
    return "well" if is_well else "between"


def _is_beyond(seen: Observation, rule: Rule) -> bool:
    value = seen.value
    if value is None or math.isnan(value):
        return False
    return value < seen.limit if rule.below else value > seen.limit
