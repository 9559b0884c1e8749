"""An alert in words: one sentence that says what is wrong, where, and by how much."""

from __future__ import annotations

from gputui.alerts.moments import RuleReading
from gputui.alerts.resolved_rules import STANDARD, ResolvedRule
from gputui.alerts.rules import Rule
from gputui.charts.units import UNKNOWN, count, metric_value


def sentence(rule: Rule, reading: RuleReading, subject: str) -> str:
    """``subject`` is how the subject is called: "GPU 3", a run's id."""
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


def thresholds(one: ResolvedRule) -> str:
    """Its numbers by name: ``above_celsius 85 °C, margin_celsius 5 °C``; empty for rules without thresholds."""
    return ", ".join(f"{each.name} {in_unit(one.limits[each.name], each.unit)}" for each in one.rule.thresholds)


def changed_by(one: ResolvedRule) -> str:
    """Who set what is not the standard: ``alerts.yaml: above_celsius, for``; ``standard`` if no one did."""
    words = {"for_seconds": "for", "clear_seconds": "clear_after", "cooldown_seconds": "cooldown"}
    by: dict[str, list[str]] = {}
    for name, source in one.sources.items():
        if name != "enabled" or not one.enabled:
            by.setdefault(source, []).append("off" if name == "enabled" else words.get(name, name))
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in by.items()) or STANDARD
