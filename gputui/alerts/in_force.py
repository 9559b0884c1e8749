"""A rule with the numbers that hold here, and where each of them comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gputui.alerts.rules import RULES, SEVERITIES, Rule, Severity

STANDARD = "standard"

Override = Mapping[str, object]
"""What is changed of one rule: a threshold's name, or ``for_seconds``, ``clear_seconds``, ``cooldown_seconds``,
``hysteresis``, ``severity``, ``enabled``."""

_TIMES = ("for_seconds", "clear_seconds", "cooldown_seconds", "hysteresis")


@dataclass(frozen=True, slots=True)
class InForce:
    """One rule as it holds. ``sources`` names for every value that is not the standard one who set it."""

    rule: Rule
    limits: Mapping[str, float]
    severity: Severity
    for_seconds: float
    clear_seconds: float
    cooldown_seconds: float
    hysteresis: float
    enabled: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Who set a value: a file, a profile, or the standard."""
        return self.sources.get(name, STANDARD)


RuleSet = Mapping[str, InForce]


def standard() -> RuleSet:
    """All rules as they are shipped."""
    return MappingProxyType({rule.id: _shipped(rule) for rule in RULES.values()})


def changed(rules: RuleSet, overrides: Mapping[str, Override], source: str) -> RuleSet:
    """The rules with what ``source`` changes of them. The overrides are valid (see `gputui.alerts.overrides`)."""
    if not overrides:
        return rules
    return MappingProxyType({**rules, **{name: _changed(rules[name], one, source) for name, one in overrides.items()}})


def of_runs() -> list[str]:
    """The rules that are about a run, and that a profile switches off."""
    return [rule.id for rule in RULES.values() if rule.of_run]


def _shipped(rule: Rule) -> InForce:
    return InForce(
        rule,
        {threshold.name: threshold.default for threshold in rule.thresholds},
        rule.severity,
        rule.for_seconds,
        rule.clear_seconds,
        rule.cooldown_seconds,
        rule.hysteresis,
    )


def _changed(one: InForce, override: Override, source: str) -> InForce:
    limits = {name: _number(override.get(name, value)) for name, value in one.limits.items()}
    times = {name: _number(override.get(name, getattr(one, name))) for name in _TIMES}
    severity = next((word for word in SEVERITIES if override.get("severity") == word), one.severity)
    # Naming a rule in order to change a number of it switches on what was off.
    enabled = bool(override.get("enabled", True))
    return InForce(
        one.rule,
        limits,
        severity,
        times["for_seconds"],
        times["clear_seconds"],
        times["cooldown_seconds"],
        times["hysteresis"],
        enabled,
        {**one.sources, **dict.fromkeys(override, source)},
    )


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
