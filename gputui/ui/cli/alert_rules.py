"""`gputui alerts rules`: the effective rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputui.core import units
from gputui.core.yaml_forms.problems import shown_path
from gputui.profiles.home_files import load_alerts
from gputui.recovery.watch import engine, overrides
from gputui.recovery.watch.rules import RULES, Rule
from gputui.ui.cli.context import Session, print_json, print_table, say
from gputui.ui.cli.explain import print_paragraphs
from gputui.ui.cli.launch_spec import load_profile


def machine_overrides(session: Session) -> overrides.Overrides:
    """The overrides in alerts.yaml; ends the command with one line per problem."""
    session.need_own_settings()
    return load_alerts(session.workspace.alerts)


def show_rules(session: Session, profile: str | None, as_json: bool) -> None:
    path = session.workspace.alerts
    machine = overrides.with_overrides(RULES, machine_overrides(session).rules, path.name)
    if profile is not None:
        changes = overrides.of_profile(load_profile(session, profile).form.alerts)
        machine = overrides.with_overrides(machine, changes.rules, "profile")
    if as_json:
        print_json([rule_shape(rule) for rule in machine.values()])
        return
    rows = [row for rule in machine.values() for row in _rows(rule)]
    header = ("RULE", "OF", "SEVERITY", "FOR", "THRESHOLD", "OF WHAT", "FROM")
    print_table(header, rows, spare=("OF WHAT", "OF"))
    say("")
    here = f"{shown_path(path)} changes them for this machine"
    if not path.exists():
        here += " (it is not there yet)"
    print_paragraphs([f"{here}, alerts: in a profile for its runs"])


def _rows(rule: Rule) -> Iterator[tuple[str, ...]]:
    """A row for each threshold of a rule, the first with what they have in common."""
    severity = rule.severity if rule.enabled else "off"
    duration = units.duration(rule.for_seconds) if rule.for_seconds else "at once"
    before: tuple[str, ...] = (rule.id, rule.subject, severity, duration)
    source = overrides.changed_by(rule)
    if not rule.thresholds:
        yield *before, "when it is reported", "", source
    for threshold in rule.thresholds:
        limit = engine.in_unit(rule.limits[threshold.name], threshold.unit)
        yield *before, f"{threshold.name} {limit}", threshold.help, source
        before = ("", "", "", "")
        source = ""


def rule_shape(rule: Rule) -> dict[str, Any]:
    """A rule of ``gputui alerts rules --json``."""
    return {
        **{name: getattr(rule, name) for name in ("id", "title", "subject", "enabled", "severity", "below")},
        "thresholds": [
            {
                "name": threshold.name,
                "value": rule.limits[threshold.name],
                "unit": threshold.unit,
                "meaning": threshold.help,
                "source": rule.sources.get(threshold.name, overrides.STANDARD),
            }
            for threshold in rule.thresholds
        ],
        "for_seconds": rule.for_seconds,
        "hysteresis": rule.hysteresis,
        "hysteresis_words": engine.in_unit(rule.hysteresis, rule.unit),
        "clear_seconds": rule.clear_seconds,
        "cooldown_seconds": rule.cooldown_seconds,
        "sources": dict(rule.sources),
        "remedy": rule.remedy,
    }
