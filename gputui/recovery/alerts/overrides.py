"""Overrides of alert rules in ``alerts.yaml`` or a profile's ``alerts:``. `gputui.profiles.alerts_form` validates
both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gputui.core.yaml_forms.quantities import parse_duration
from gputui.recovery.alerts.resolved_rules import Override
from gputui.recovery.alerts.rules import RULES, RUN_RULE_IDS, Severity
from gputui.recovery.alerts.schedules import RateSchedule

_TIMES = {"for": "for_seconds", "clear_after": "clear_seconds", "cooldown": "cooldown_seconds"}
MAX_SECONDS = 30 * 86400.0


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
    """The overrides in a profile's valid ``alerts:``: a mapping, ``standard``, or ``off`` (None). Raises ValueError."""
    if isinstance(alerts, Mapping):
        return overrides_from(alerts)
    is_off = alerts is None or alerts == "off"
    return Overrides({name: {"enabled": False} for name in RUN_RULE_IDS}) if is_off else Overrides()


def overrides_from(mapping: Mapping[str, Any]) -> Overrides:
    """The overrides in a valid mapping (see `gputui.profiles.alerts_form`). Raises ValueError for an invalid one."""
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
    return float(seconds) if seconds is not None and 0 <= seconds <= MAX_SECONDS else None
