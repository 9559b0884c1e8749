"""Alerts as sentences."""

from __future__ import annotations

from gputui.core.units import UNKNOWN, count, metric_value
from gputui.recovery.alerts.moments import RuleReading
from gputui.recovery.alerts.resolved_rules import STANDARD, ResolvedRule
from gputui.recovery.alerts.rules import Rule


def sentence(rule: Rule, reading: RuleReading, subject: str) -> str:
    """The sentence of an alert. ``subject`` is its name: "GPU 3", a run's ID."""
    text = rule.sentence.format(
        subject=subject,
        value=in_unit(reading.value, rule.unit),
        limit=in_unit(reading.limit, rule.unit),
        detail=reading.detail,
    )
    return text[:1].upper() + text[1:] if rule.subject == "host" else text


def in_unit(value: float | None, unit: str) -> str:
    """``95 %``, ``82 °C``, ``2.4 GB/h``, ``1 000 steps``; a number without a unit with four digits."""
    if value is None:
        return UNKNOWN
    if value != value or abs(value) == float("inf"):
        return metric_value(value)
    if not unit:
        return count(value) if float(value).is_integer() else metric_value(value)
    if unit in ("GB/h", "GiB"):
        return f"{value:.1f} {unit}"
    if unit == "×":
        return f"{value:g} ×"
    if unit in ("steps", "epochs"):
        return f"{count(value) if float(value).is_integer() else f'{value:g}'} {unit}"
    is_fine = abs(value) < 10 and not float(value).is_integer()
    return f"{value:.1f} {unit}" if is_fine else f"{count(value)} {unit}"


def thresholds(rule: ResolvedRule) -> str:
    """The thresholds by name: ``above_celsius 85 °C, margin_celsius 5 °C``; empty without any."""
    return ", ".join(
        f"{threshold.name} {in_unit(rule.limits[threshold.name], threshold.unit)}" for threshold in rule.rule.thresholds
    )


def changed_by(rule: ResolvedRule) -> str:
    """The sources of overrides: ``alerts.yaml: above_celsius, for``; ``standard`` without any."""
    words = {"for_seconds": "for", "clear_seconds": "clear_after", "cooldown_seconds": "cooldown"}
    by: dict[str, list[str]] = {}
    for name, source in rule.sources.items():
        if name != "enabled" or not rule.enabled:
            by.setdefault(source, []).append("off" if name == "enabled" else words.get(name, name))
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in by.items()) or STANDARD
