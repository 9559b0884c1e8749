"""An alert in words: one sentence that says what is wrong, where, and by how much."""

from __future__ import annotations

from gputui.alerts.in_force import InForce
from gputui.alerts.moments import Reading
from gputui.alerts.rules import Rule
from gputui.charts.units import UNKNOWN, count, metric_value


def sentence(rule: Rule, reading: Reading, subject: str) -> str:
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


def condition(one: InForce) -> str:
    """What raises it: ``more than 95 % for 5 min``; empty for what is told whenever it is reported."""
    word = "less than" if one.rule.below else "more than"
    parts = [f"{word} {in_unit(one.limits[each.name], each.unit)}" for each in one.rule.thresholds]
    return ", ".join(parts)
