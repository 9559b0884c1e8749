"""The page of alerts: the active and the resolved ones, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line, Span
from gputui.store.alerts import AlertView
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.dialogs.questions import silence_form
from gputui.ui.tui.layout.columns import Column, fill_height, paragraph, rule
from gputui.ui.tui.layout.lists import Listing, ListState, RowOrder, filter_rows
from gputui.ui.tui.layout.strips import SEVEREST_FIRST, alert_words
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.views.snapshot import Interest, Moment, Snapshot
from gputui.ui.views.words import SIGNS, dated_clock

DETAIL_LEAST = 4
DETAIL_MOST = 8


class AlertsScreen(ListingPage[AlertView]):
    """A list of alerts, and below it the one under the cursor in full."""

    SCOPE: ClassVar[Scope] = "alerts"
    ORDERS = tuple(RowOrder[AlertView](name, name[0], f"by {name}") for name in ("severity", "time"))

    def __init__(self) -> None:
        super().__init__(ListState(order="severity"))

    def interest(self) -> Interest:
        return Interest(alerts=True)

    def make_listing(self) -> Listing[AlertView]:
        """Active alerts in the chosen order, by severity the new ones first; then resolved ones."""
        order = self.table.order
        now = self.snapshot.at
        active = filter_rows(self.snapshot.alerts, self.table.filter_text, _search_text)
        active.sort(key=lambda alert: (-alert.raised_at, -alert.alert_id))
        if order == "severity":
            active.sort(key=lambda alert: (not alert.is_news(now), SEVEREST_FIRST.index(alert.severity)))
        resolved = filter_rows(self.snapshot.resolved_alerts, self.table.filter_text, _search_text)
        sections = {"": active, "RESOLVED": resolved}
        empty = "No active alerts."
        return Listing("ALERTS", _columns(self.snapshot), sections, lambda alert: alert.alert_id, empty=empty)

    def summary(self) -> list[Span]:
        active = self.snapshot.alerts
        now = self.snapshot.at
        return [(f" · {len(active)} active, {sum(alert.is_news(now) for alert in active)} new", "text")]

    def foot(self, width: int, height: int) -> list[Line]:
        """The alert under the cursor: sentence, remedy and history."""
        alert = self.current
        if alert is None:
            return []
        lines = [rule(_title(alert.rule).upper(), width, f"{alert.rule} · {alert.severity}")]
        lines += paragraph((" ", "text"), alert_words(alert, self.snapshot), "text", width)
        lines += paragraph((" ", "text"), clean(f"To do: {alert.remedy}"), "accent", width)
        history = " · ".join(_history(alert, self.snapshot.at))
        lines += paragraph((" ", "text"), clean(history), "dim", width)
        return fill_height(lines, width, min(DETAIL_MOST, max(DETAIL_LEAST, height // 3)))

    def run_id_of(self, row: AlertView) -> str | None:
        return row.run_id

    def context(self) -> Context:
        return replace(super().context(), alert=self.current)

    def copyable(self) -> Sequence[Copyable]:
        if self.current is None:
            return []
        return [Copyable("the alert", alert_words(self.current, self.snapshot))]

    # --- actions

    def do_alert_moment(self) -> None:
        assert self.current is not None
        self.app.pop_screen()
        self.shell.look_back(Moment(self.current.raised_at))

    def do_acknowledge(self) -> None:
        assert self.current is not None
        self.shell.ask("Acknowledge", "alert_ack", run_id=None, args={"ids": [self.current.alert_id]})
        self.move(1)

    def do_acknowledge_all(self) -> None:
        self.shell.ask("Acknowledge all", "alert_ack", run_id=None, args={"ids": None})

    def do_silence(self) -> None:
        alert = self.current
        assert alert is not None

        def silence(seconds: float, is_everywhere: bool) -> None:
            args: dict[str, object] = {"seconds": seconds}
            if is_everywhere:
                args["rule"] = alert.rule
            else:
                args["id"] = alert.alert_id
            self.shell.ask("Silence", "alert_silence", run_id=None, args=args)

        self.app.push_screen(silence_form(alert, self.snapshot.at, silence))


def _title(rule_name: str) -> str:
    """The title of a rule; its name if this gputui does not know it."""
    # Imported on first use: most screens show no alerts.
    from gputui.recovery.watch.rules import RULES

    if rule_name in RULES:
        return RULES[rule_name].title
    return clean(rule_name)


def _search_text(alert: AlertView) -> str:
    """The words that a filter searches."""
    texts = (alert.sentence, alert.rule, _title(alert.rule), alert.severity, alert.subject_name, alert.run_id or "")
    return " ".join(texts)


def _columns(snapshot: Snapshot) -> list[Column[AlertView]]:
    now = snapshot.at

    def sign(alert: AlertView, _: int) -> list[Span]:
        glyph, style = SIGNS[alert.severity]
        if not alert.lasts:
            style = "dim"
        return [(glyph, style)]

    def sentence(alert: AlertView, _: int) -> list[Span]:
        style = "text" if alert.is_news(now) else "dim"
        return [(alert_words(alert, snapshot), style)]

    return [
        Column("", 1, sign),
        Column("SINCE", 12, lambda alert, _: [(dated_clock(alert.raised_at, now), "dim")], gap=1),
        Column("FOR", 11, lambda alert, _: [(_lasted_text(alert, now), "dim")], gap=1, importance=1),
        Column("STATE", 8, lambda alert, _: [_state(alert, now)], gap=1),
        Column("ALERT", 20, sentence, gap=1, grow=1),
    ]


def _lasted_text(alert: AlertView, now: float) -> str:
    """How long an alert has lasted, rounded, so that it does not change with every second."""
    end = now if alert.cleared_at is None else alert.cleared_at
    seconds = end - alert.raised_at
    if seconds < 10:
        return "<10 s"
    step = 60 if seconds >= 60 else 10
    return duration(seconds // step * step)


def _state(alert: AlertView, now: float) -> Span:
    if not alert.lasts:
        return "resolved", "dim"
    if alert.is_silenced(now):
        return "silenced", "dim"
    if alert.acknowledged_at is not None:
        return ("acked", "dim")
    return ("new", "label")


def _history(alert: AlertView, now: float) -> list[str]:
    def clock(at: float) -> str:
        return dated_clock(at, now)

    parts = [f"raised {clock(alert.raised_at)}"]
    if alert.cleared_at is not None:
        lasted = duration(max(0.0, alert.cleared_at - alert.raised_at))
        parts.append(f"over {clock(alert.cleared_at)} after {lasted}, {alert.cleared_because or ''}")
    if alert.acknowledged_at is not None:
        parts.append(f"acked by {alert.acknowledged_by or '–'} {clock(alert.acknowledged_at)}")
    if alert.silenced_until is not None and alert.is_silenced(now):
        parts.append(f"silenced until {clock(alert.silenced_until)} by {alert.silenced_by or '–'}")
    if alert.run_id is not None:
        parts.append(f"run {alert.run_id}")
    return parts
