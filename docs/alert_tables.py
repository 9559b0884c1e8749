"""Write the alert rules of `gputui.recovery.watch.rules` into docs/alerts.md: ``python -m docs.alert_tables``.

It replaces the text between the markers; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from gputui.core.units import duration
from gputui.recovery.watch.engine import in_unit
from gputui.recovery.watch.rules import RULES, Rule, SubjectKind

PAGE = Path(__file__).resolve().parent / "alerts.md"

_MARKED = re.compile(r"(?P<begin><!-- rules: (?P<kind>\w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def updated(page: str) -> str:
    """The page with up-to-date tables."""

    def fresh(found: re.Match[str]) -> str:
        return f"{found['begin']}\n{table(found['kind'])}\n{found['end']}"

    return _MARKED.sub(fresh, page)


def table(kind: SubjectKind | str) -> str:
    """The rules of one kind of subject as a Markdown table."""
    rows = [_row(rule) for rule in RULES.values() if rule.subject == kind]
    return "".join(
        ["| rule | severity | raised | for | cleared | what to do |\n", "|---|---|---|---|---|---|\n", *rows]
    )


def _row(rule: Rule) -> str:
    raised = "; ".join(
        f"`{each.name}: {each.default:g}`{f' {each.unit}' if each.unit else ''}: {each.help}"
        for each in rule.thresholds
    )
    wait = duration(rule.for_seconds) if rule.for_seconds else "at once"
    back = f"{in_unit(rule.hysteresis, rule.unit)} back, " if rule.hysteresis else ""
    cleared = f"{back}{duration(rule.clear_seconds)}" if rule.clear_seconds else f"{back}at once"
    cells = (f"`{rule.id}`: {rule.title}", rule.severity, raised or "when reported", wait, cleared, rule.remedy)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
