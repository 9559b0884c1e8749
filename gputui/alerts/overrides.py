"""What ``alerts.yaml`` or a profile's ``alerts:`` changes of the rules. `gputui.profiles.alerts_form` checks both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gputui.alerts.resolved_rules import Override
from gputui.alerts.rules import RULES, RUN_RULE_IDS, Severity
from gputui.alerts.schedules import RateSchedule
from gputui.yaml_forms.quantities import parse_duration

_TIMES = {"for": "for_seconds", "clear_after": "clear_seconds", "cooldown": "cooldown_seconds"}
MOST_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where alerts are sent besides the screen, a command or a webhook, and from which severity on."""

    command: tuple[str, ...] = ()
    webhook: str | None = None
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one file changes of the rules."""

    rules: Mapping[str, Override] = field(default_factory=dict)
    delivery: Delivery | None = None
    schedule: RateSchedule | None = None


def of_profile(alerts: str | Mapping[str, Any] | None) -> Overrides:
    """What a profile's valid ``alerts:`` changes: a mapping, ``standard``, or ``off`` (None). Raises ValueError."""
    if isinstance(alerts, Mapping):
        return overrides_from(alerts)
    is_off = alerts is None or alerts == "off"
    return Overrides({name: {"enabled": False} for name in RUN_RULE_IDS}) if is_off else Overrides()


def overrides_from(mapping: Mapping[str, Any]) -> Overrides:
    """What a valid mapping changes (see `gputui.profiles.alerts_form`). Raises ValueError for one that is not."""
    if unknown := mapping.keys() - RULES.keys() - {"notify"}:
        raise ValueError(f"unknown alert rules: {', '.join(sorted(map(str, unknown)))}")
    try:
        rules = {name: _override(given) for name, given in mapping.items() if name != "notify"}
        notify, own = mapping.get("notify"), mapping.get("lr_off_schedule")
        schedule = own.get("schedule") if isinstance(own, Mapping) else None
        return Overrides(
            rules,
            None if notify is None else Delivery(**{**notify, "command": tuple(notify.get("command", ()))}),
            _schedule(schedule),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the alert rules are not understood: {error!r}") from error


def _override(given: object) -> Override:
    if not isinstance(given, Mapping):
        return {"enabled": given in (True, "on")}
    found: dict[str, object] = {"enabled": True} if set(given) - {"schedule"} else {}
    for key, value in given.items():
        if key in _TIMES:
            found[_TIMES[key]] = parse_seconds(value)
        elif key != "schedule":
            found[key] = value if key == "severity" else float(value)
    return found


def _schedule(given: str | Mapping[str, Any] | None) -> RateSchedule | None:
    if given is None:
        return None
    return RateSchedule(**({"shape": given} if isinstance(given, str) else given))


def parse_seconds(value: object) -> float | None:
    """A duration: a number of seconds, or text such as ``90 s``, ``5 min``, ``2h``, ``1 d``; None if it is none."""
    if isinstance(value, bool):
        return None
    seconds = parse_duration(value) if isinstance(value, str) else value if isinstance(value, (int, float)) else None
    return float(seconds) if seconds is not None and 0 <= seconds <= MOST_SECONDS else None
