"""Alert rules with their effective values, and the source of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.alerts.rules import RULES, SEVERITIES, Rule, Severity

STANDARD = "standard"

Override = Mapping[str, object]
"""The changes to one rule: a threshold's name, or ``for_seconds``, ``clear_seconds``, ``cooldown_seconds``,
``hysteresis``, ``severity``, ``enabled``."""


class ResolvedRule(Struct, frozen=True):
    """One rule with its effective values. `gputui.recovery.alerts.rules.Rule` explains the durations.

    Attributes:
        rule: the rule as shipped.
        limits: the thresholds by name.
        severity: how bad it is.
        for_seconds: time beyond a limit until the alert is raised.
        clear_seconds: time within the limits until it is cleared.
        cooldown_seconds: time after that until it may be raised again.
        hysteresis: distance from the limit at which a value counts as back, in the rule's unit.
        enabled: whether the rule is evaluated.
        sources: who set a value, by its name; standard values are missing.
    """

    rule: Rule
    limits: Mapping[str, float]
    severity: Severity
    for_seconds: float
    clear_seconds: float
    cooldown_seconds: float
    hysteresis: float
    enabled: bool = True
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)

    def source(self, name: str) -> str:
        """Who set a value: a file's name, ``profile``, or ``standard``."""
        return self.sources.get(name, STANDARD)


RuleSet = Mapping[str, ResolvedRule]
"""Every rule by its id."""


def standard() -> RuleSet:
    """All rules as they are shipped."""
    return MappingProxyType({rule.id: _shipped(rule) for rule in RULES.values()})


def with_overrides(rules: RuleSet, overrides: Mapping[str, Override], source: str) -> RuleSet:
    """The rules with the valid overrides of one source (see `gputui.recovery.alerts.overrides`)."""
    if not overrides:
        return rules
    overridden = {name: _overridden(rules[name], override, source) for name, override in overrides.items()}
    return MappingProxyType({**rules, **overridden})


def _shipped(rule: Rule) -> ResolvedRule:
    return ResolvedRule(
        rule,
        {threshold.name: threshold.default for threshold in rule.thresholds},
        rule.severity,
        rule.for_seconds,
        rule.clear_seconds,
        rule.cooldown_seconds,
        rule.hysteresis,
    )


def _overridden(rule: ResolvedRule, override: Override, source: str) -> ResolvedRule:
    def number(name: str, value: float) -> float:
        found = override.get(name, value)
        assert isinstance(found, (int, float))
        return float(found)

    # An override that does not mention it switches a rule on.
    enabled = bool(override.get("enabled", True))
    set_here = [*override, "enabled"] if enabled and not rule.enabled else [*override]
    return replace(
        rule,
        limits={name: number(name, value) for name, value in rule.limits.items()},
        severity=next((word for word in SEVERITIES if override.get("severity") == word), rule.severity),
        for_seconds=number("for_seconds", rule.for_seconds),
        clear_seconds=number("clear_seconds", rule.clear_seconds),
        cooldown_seconds=number("cooldown_seconds", rule.cooldown_seconds),
        hysteresis=number("hysteresis", rule.hysteresis),
        enabled=enabled,
        sources={**rule.sources, **dict.fromkeys(set_here, source)},
    )
