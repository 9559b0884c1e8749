"""A user's changes to the rules of alerts, from ``alerts.yaml`` or a profile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.yaml_forms.quantities import parse_duration
from gputui.recovery.watch.learning_rate import RateSchedule
from gputui.recovery.watch.rules import RULES, RUN_RULE_IDS, Rule, RuleSet

STANDARD = "standard"
MAX_SECONDS = 30 * 86400.0  # longer is never meant: the rule is to be turned off
# The keys of files, by the fields of a rule.
_TIMES = {"for_seconds": "for", "clear_seconds": "clear_after", "cooldown_seconds": "cooldown"}
_FIELDS = {key: name for name, key in _TIMES.items()}

Override = Mapping[str, Any]
"""The changes to one rule: a threshold's name, or a field of `Rule`."""


class Overrides(Struct, frozen=True):
    """The overrides of one file."""

    rules: Mapping[str, Override] = msgspec.field(default_factory=dict)
    schedule: RateSchedule | None = None


def of_profile(alerts: str | Mapping[str, Any] | None) -> Overrides:
    """The overrides of a profile: a mapping, ``standard`` or ``off``. Raises ValueError."""
    if isinstance(alerts, Mapping):
        return overrides_from(alerts)
    is_off = alerts is None or alerts == "off"
    return Overrides({name: {"enabled": False} for name in RUN_RULE_IDS if is_off})


def overrides_from(mapping: Mapping[str, Any]) -> Overrides:
    """The overrides in a valid mapping. Raises ValueError for an invalid one."""
    if unknown := mapping.keys() - RULES.keys():
        raise ValueError(f"unknown alert rules: {', '.join(sorted(map(str, unknown)))}")
    try:
        rules = {name: _override(setting) for name, setting in mapping.items()}
        rate_setting = mapping.get("lr_off_schedule")
        schedule = None
        if isinstance(rate_setting, Mapping):
            schedule = rate_setting.get("schedule")
        if isinstance(schedule, str):
            schedule = {"shape": schedule}
        if schedule is None:
            return Overrides(rules)
        return Overrides(rules, RateSchedule(**schedule))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the alert rules are not understood: {error!r}") from error


def _override(setting: object) -> Override:
    if not isinstance(setting, Mapping):
        return {"enabled": setting in (True, "on")}
    override: dict[str, Any] = {}
    if set(setting) - {"schedule"}:
        override["enabled"] = True
    for key, value in setting.items():
        if key in _FIELDS:
            override[_FIELDS[key]] = parse_seconds(value)
        elif key != "schedule":
            override[key] = value
            if key != "severity":
                override[key] = float(value)
    return override


def parse_seconds(value: object) -> float | None:
    """A duration in seconds: a number, or text such as ``90 s``, ``2h``; None if it is none."""
    seconds = value
    if isinstance(value, str):
        seconds = parse_duration(value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    if 0 <= seconds <= MAX_SECONDS:
        return float(seconds)
    return None


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


def changed_by(rule: Rule) -> str:
    """The sources of overrides: ``alerts.yaml: above_celsius, for``; ``standard`` without any."""
    by: dict[str, list[str]] = {}
    for name, source in rule.sources.items():
        if name != "enabled" or not rule.enabled:
            label = "off" if name == "enabled" else _TIMES.get(name, name)
            by.setdefault(source, []).append(label)
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in by.items()) or STANDARD
