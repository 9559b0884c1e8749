"""Alerts as lines: the strip on the overview, the table of their page, and the details of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.alerts import AlertView
from gputui.ui.tui.data.snapshot import AlertsState
from gputui.ui.tui.layout.columns import Column, between, clip_line, fit_line, place, row_line, rule, selected, wrap
from gputui.ui.tui.layout.words import dated_clock

SIGNS = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("·", "accent")}
"""Glyph and style of each severity."""

Order = Literal["severity", "time"]
SEVEREST_FIRST = ("error", "warning", "info")


class AlertsTable(Struct, frozen=True):
    """State of the page beyond the snapshot: the alert under the cursor, the first row shown, filter and order."""

    cursor: int | None = None
    top: int = 0
    filter_text: str = ""
    order: Order = "severity"


class _Shown(NamedTuple):
    alert: AlertView
    now: float
    is_current: bool

    @property
    def style(self) -> str:
        return "text" if self.alert.is_news(self.now) else "dim"


# --- the strip


def alert_strip(state: AlertsState, now: float, width: int, *, has_keys: bool = True) -> Line | None:
    """The number of alerts of each severity, and the worst in words; None if there are none. ``has_keys``: the strip
    names the key of the page."""
    news = [one for one in state.last if one.is_news(now)]
    if not news:
        return None
    parts: list[Span] = [(" ", "text")]
    for severity in SEVEREST_FIRST:
        count = sum(one.severity == severity for one in news)
        if count:
            glyph, style = SIGNS[severity]
            word = {"error": "error", "warning": "warning", "info": "note"}[severity]
            plural = "" if severity == "error" or count == 1 else "s"
            parts.append((f"{glyph} {count} {word}{plural}  ", style))
    worst = news[0]
    quiet = len(state.last) - len(news)
    right: list[Span] = [(f"{quiet} acked or silenced  ", "dim")] if quiet and width >= 110 else []
    right += [(" !", "key"), (" alerts ", "dim")] if has_keys else []
    return between([*parts, (clean(worst.sentence), SIGNS.get(worst.severity, SIGNS["info"])[1])], right, width)


# --- the table


def shown_alerts(state: AlertsState, table: AlertsTable, now: float) -> list[AlertView]:
    """The filtered alerts: active ones in the chosen order, then resolved ones. By severity, acknowledged and silenced
    alerts follow new ones."""
    words = table.filter_text.lower().split()
    last = [one for one in state.last if _matches(one, words)]
    if table.order == "time":
        last.sort(key=lambda one: (-one.raised_at, -one.alert_id))
    else:
        ranks: dict[str, int] = {severity: rank for rank, severity in enumerate(SEVEREST_FIRST)}
        last.sort(
            key=lambda one: (not one.is_news(now), ranks.get(one.severity, len(ranks)), -one.raised_at, -one.alert_id)
        )
    return last + [one for one in state.over if _matches(one, words)]


def _title(rule_name: str) -> str | None:
    """The title of a rule; None for one that this gputui does not know."""
    # Imported on first use: most screens show no alerts.
    from gputui.recovery.watch.rules import RULES

    return RULES[rule_name].title if rule_name in RULES else None


def _matches(alert: AlertView, words: Sequence[str]) -> bool:
    title = _title(alert.rule) or ""
    parts = (alert.sentence, alert.rule, title, alert.severity, alert.subject_name, alert.run_id or "")
    text = " ".join(parts).lower()
    return all(word in text for word in words)


def table_lines(alerts: Sequence[AlertView], table: AlertsTable, now: float, width: int, height: int) -> list[Line]:
    """A heading and a row for each of `shown_alerts`; resolved alerts are below a second heading."""
    lasting = sum(one.lasts for one in alerts)
    title = f"ALERTS /{clean(table.filter_text)}" if table.filter_text else "ALERTS"
    note = "by severity" if table.order == "severity" else "by time"
    lines = [rule(title, width, note)]
    if not lasting:
        words = "No alert matches the filter; esc clears it." if table.filter_text else "No active alerts."
        lines.append(fit_line([(f"  {words}", "dim")], width))
    placed = place(_COLUMNS, width)
    for number, one in enumerate(alerts[table.top :], table.top):
        if number == lasting:
            lines.append(rule("RESOLVED", width))
        is_current = one.alert_id == table.cursor
        line = row_line(placed, _Shown(one, now, is_current), width)
        lines.append(selected(line) if is_current else line)
        if len(lines) >= height:
            break
    return lines[:height]


def row_of(alerts: Sequence[AlertView], table: AlertsTable, y: int) -> AlertView | None:
    """The alert in line ``y`` of the table; None in a heading or below."""
    lasting = sum(one.lasts for one in alerts)
    row = table.top + y - 1 - (0 if lasting else 1)
    if lasting <= row and table.top <= lasting < len(alerts):
        row -= 1
        if row < lasting:
            return None
    return alerts[row] if table.top <= row < len(alerts) else None


def room_for_rows(height: int) -> int:
    """How many alerts fit below the headings in any case."""
    return max(1, height - 3)


def _cursor(shown: _Shown, width: int) -> list[Span]:
    glyph, style = SIGNS.get(shown.alert.severity, SIGNS["info"])
    return [("▸" if shown.is_current else " ", "cursor"), (glyph, style if shown.alert.lasts else "dim")]


def _lasted(shown: _Shown, width: int) -> list[Span]:
    alert = shown.alert
    end = shown.now if alert.cleared_at is None else alert.cleared_at
    seconds = max(0.0, end - alert.raised_at)
    # Rounded, so that it does not change with every second.
    if seconds < 10:
        return [("<10 s", "dim")]
    return [(duration(seconds // 60 * 60 if seconds >= 60 else seconds // 10 * 10), "dim")]


def _mark(shown: _Shown, width: int) -> list[Span]:
    alert = shown.alert
    if not alert.lasts:
        return [("resolved", "dim")]
    if alert.is_silenced(shown.now):
        return [("silenced", "dim")]
    return [("acked", "dim")] if alert.acknowledged_at is not None else [("new", "label")]


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column("", 2, _cursor),
    Column("since", 12, lambda shown, _: [(dated_clock(shown.alert.raised_at, shown.now), "dim")], gap=1),
    Column("for", 11, _lasted, gap=1, importance=1),
    Column("", 8, _mark, gap=1),
    Column("alert", 20, lambda shown, _: [(clean(shown.alert.sentence), shown.style)], gap=1, grow=1),
)  # fmt: skip


# --- one alert


def detail_lines(alert: AlertView | None, now: float, width: int, height: int) -> list[Line]:
    """Details of the alert under the cursor: sentence, remedy and history."""
    if alert is None or height < 1:
        return []
    title = (_title(alert.rule) or clean(alert.rule)).upper()
    lines = [rule(title, width, f"{alert.rule} · {alert.severity}")]
    for text, style in ((alert.sentence, "text"), (f"To do: {alert.remedy}", "accent")):
        lines += [fit_line([(f" {part}", style)], width) for part in wrap(clean(text), width - 2)]
    lines.append(fit_line(clip_line([(f" {part}", "dim") for part in _history(alert, now)], width), width))
    return lines[:height]


def _history(alert: AlertView, now: float) -> list[str]:
    words = [f"raised {dated_clock(alert.raised_at, now)}"]
    if alert.cleared_at is not None:
        lasted = duration(max(0.0, alert.cleared_at - alert.raised_at))
        words.append(f"· over {dated_clock(alert.cleared_at, now)} after {lasted}, {alert.cleared_because or ''}")
    if alert.acknowledged_at is not None:
        words.append(f"· acked by {clean(alert.acknowledged_by or '–')} {dated_clock(alert.acknowledged_at, now)}")
    if alert.silenced_until is not None and alert.is_silenced(now):
        words.append(
            f"· silenced for {duration((alert.silenced_until - now) // 60 * 60)} by {clean(alert.silenced_by or '–')}"
        )
    if alert.run_id is not None:
        words.append(f"· run {clean(alert.run_id)}")
    return words
