"""What ``alerts.yaml`` or a profile's ``alerts:`` changes, with every mistake named at once.

The same keys in both: a rule's id with ``off``, or with a mapping of its thresholds, ``for``, ``clear_after``,
``cooldown``, ``hysteresis`` and ``severity``. Only the machine's file says how alerts are told; only a profile names
the schedule of a learning rate.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gputui.alerts.in_force import Override
from gputui.alerts.rules import RULES, SEVERITIES, Rule, Severity
from gputui.alerts.schedules import SHAPES, RateSchedule

Place = tuple[str | int, ...]
Whose = Literal["machine", "profile"]

_TIMES = {"for": "for_seconds", "clear_after": "clear_seconds", "cooldown": "cooldown_seconds"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MOST_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """How alerts are told outside the screen: a command, a webhook, and from which severity on."""

    command: tuple[str, ...] = ()
    webhook: str | None = None
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one source changes."""

    rules: Mapping[str, Override] = field(default_factory=dict)
    delivery: Delivery | None = None
    schedule: RateSchedule | None = None


@dataclass(frozen=True, slots=True)
class AlertsProblem:
    """One mistake: the keys that lead to it, what is wrong in one sentence, and what was probably meant."""

    place: Place
    text: str
    nearest: str | None = None


class AlertsError(ValueError):
    """It cannot be understood. ``problems`` holds every mistake."""

    def __init__(self, problems: Iterable[AlertsProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, one.place))}: {one.text}" for one in self.problems))


def parse_overrides(mapping: object, whose: Whose) -> Overrides:
    """What a mapping changes. Raises AlertsError."""
    parser = _Parser(whose)
    found = parser.overrides(mapping)
    if parser.problems:
        raise AlertsError(parser.problems)
    return found


def parse_seconds(value: object) -> float | None:
    """A duration: a number of seconds, or text such as ``90 s``, ``5 min``, ``2h``, ``1 d``; None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _UNITS[match[2]]
    else:
        return None
    return seconds if math.isfinite(seconds) and 0 <= seconds <= MOST_SECONDS else None


class _Parser:
    """Collects mistakes and goes on, so that a person sees all of them."""

    def __init__(self, whose: Whose) -> None:
        self.whose = whose
        self.problems: list[AlertsProblem] = []

    def wrong(self, place: Place, text: str, nearest: str | None = None) -> None:
        self.problems.append(AlertsProblem(place, text, nearest))

    def overrides(self, mapping: object) -> Overrides:
        if not isinstance(mapping, Mapping):
            self.wrong((), "expected a mapping from rules to what is changed of them")
            return Overrides()
        known = [*RULES, *(["notify"] if self.whose == "machine" else [])]
        rules: dict[str, Override] = {}
        delivery: Delivery | None = None
        schedule: RateSchedule | None = None
        for name, value in mapping.items():
            if name == "notify" and self.whose == "machine":
                delivery = self._delivery(value)
            elif name not in RULES:
                self._unknown((str(name),), str(name), known, "rule")
            elif RULES[name].subject == "host" and self.whose == "profile":
                self.wrong((name,), "is about the whole machine; change it in alerts.yaml")
            else:
                if name == "lr_off_schedule" and isinstance(value, Mapping) and "schedule" in value:
                    schedule = self._schedule(value["schedule"], (name, "schedule"))
                    value = {key: one for key, one in value.items() if key != "schedule"}
                rules[name] = self._rule(RULES[name], value)
        return Overrides(rules, delivery, schedule)

    def _rule(self, rule: Rule, value: object) -> Override:
        if value is False or value == "off":
            return {"enabled": False}
        if value is True or value == "on":
            return {"enabled": True}
        if not isinstance(value, Mapping):
            self.wrong((rule.id,), "expected off, or a mapping of what is changed")
            return {}
        numbers = {threshold.name: (threshold.least, threshold.most) for threshold in rule.thresholds}
        numbers["hysteresis"] = (0.0, 1e12)
        found: dict[str, object] = {"enabled": True} if value else {}
        for key, given in value.items():
            place = (rule.id, str(key))
            if key in numbers:
                least, most = numbers[key]
                if not _is_number(given) or not least <= given <= most:
                    above = "" if most >= 1e12 else f" to {most:g}"
                    self.wrong(place, f"expected a number from {least:g}{above}")
                else:
                    found[key] = float(given)
            elif key in _TIMES:
                seconds = parse_seconds(given)
                if seconds is None:
                    self.wrong(place, "expected seconds, or a time such as 90 s, 5 min or 2 h, of at most 30 days")
                else:
                    found[_TIMES[key]] = seconds
            elif key == "severity":
                if given not in SEVERITIES:
                    self.wrong(place, f"expected one of {', '.join(SEVERITIES)}", _near(str(given), SEVERITIES))
                else:
                    found["severity"] = given
            else:
                self._unknown(place, str(key), [*numbers, *_TIMES, "severity"], "key")
        return found

    def _schedule(self, value: object, place: Place) -> RateSchedule | None:
        keys = ("shape", "peak", "final", "warmup_steps", "total_steps")
        if self.whose == "machine":
            self.wrong(place, "is a matter of a profile, not of the machine")
            return None
        if isinstance(value, str):
            value = {"shape": value}
        if not isinstance(value, Mapping):
            self.wrong(place, f"expected one of {', '.join(SHAPES)}, or a mapping with {', '.join(keys)}")
            return None
        for key in value:
            if key not in keys:
                self._unknown((*place, str(key)), str(key), keys, "key")
        shape = next((one for one in SHAPES if value.get("shape") == one), None)
        if shape is None:
            self.wrong(
                (*place, "shape"), f"expected one of {', '.join(SHAPES)}", _near(str(value.get("shape")), SHAPES)
            )
            return None
        for key in ("peak", "final"):
            if key in value and (not _is_number(value[key]) or value[key] < 0):
                self.wrong((*place, key), "expected a number of at least 0")
                return None
        for key in ("warmup_steps", "total_steps"):
            given = value.get(key, 0)
            if isinstance(given, bool) or not isinstance(given, int) or given < 0:
                self.wrong((*place, key), "expected a whole number of steps")
                return None
        peak = value.get("peak")
        return RateSchedule(
            shape,
            None if peak is None else float(peak),
            float(value.get("final", 0.0)),
            int(value.get("warmup_steps", 0)),
            value.get("total_steps"),
        )

    def _delivery(self, value: object) -> Delivery | None:
        place: Place = ("notify",)
        keys = ("command", "webhook", "severity")
        if not isinstance(value, Mapping) or not value:
            self.wrong(place, "expected a mapping with command or webhook")
            return None
        for key in value:
            if key not in keys:
                self._unknown((*place, str(key)), str(key), keys, "key")
        command, webhook, severity = value.get("command", []), value.get("webhook"), value.get("severity", "warning")
        if not isinstance(command, list) or not all(isinstance(word, str) and "\0" not in word for word in command):
            self.wrong((*place, "command"), "expected a list of words such as [notify-send, gputui]")
            command = []
        if webhook is not None and not (isinstance(webhook, str) and re.fullmatch(r"https?://[^\s/]\S*", webhook)):
            # What stands there may be half a secret.
            self.wrong((*place, "webhook"), "expected an address that begins with http:// or https://")
            webhook = None
        if severity not in SEVERITIES:
            self.wrong(
                (*place, "severity"), f"expected one of {', '.join(SEVERITIES)}", _near(str(severity), SEVERITIES)
            )
            severity = "warning"
        return Delivery(tuple(command), webhook, severity)

    def _unknown(self, place: Place, name: str, known: Iterable[str], what: str) -> None:
        names = list(known)
        near = _near(name, names)
        self.wrong(place, f"unknown {what}" + ("" if near else f"; there are {', '.join(names)}"), near)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _near(name: str, names: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name.lower().replace("-", "_")[:100], list(names), n=1, cutoff=0.5)
    return found[0] if found else None
