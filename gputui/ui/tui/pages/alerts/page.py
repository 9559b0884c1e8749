"""The page of alerts: the active and the resolved ones, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.alerts import AlertView
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import AlertsState, Interest, Moment
from gputui.ui.tui.dialogs.questions import Silence, SilenceScreen
from gputui.ui.tui.layout.alerts import SEVEREST_FIRST, SIGNS
from gputui.ui.tui.layout.columns import Column, fit_line, rule, wrap
from gputui.ui.tui.layout.lists import Listing, ListSection, ListState, RowOrder
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import Copyable

DETAIL_LEAST, DETAIL_MOST = 4, 8


class AlertsScreen(ListingPage[AlertView]):
    """A list of alerts, and below it the one under the cursor in full."""

    SCOPE: ClassVar[Scope] = "alerts"
    OPENS = "alert_run"
    ORDERS = (RowOrder[AlertView]("severity", "s", "by severity"), RowOrder[AlertView]("time", "t", "by time"))

    def __init__(self) -> None:
        super().__init__(ListState(order="severity"))

    def interest(self) -> Interest:
        return Interest(alerts=True)

    def make_listing(self) -> Listing[AlertView]:
        snapshot, state = self.snapshot, self.table
        sections = sections_of(snapshot.alerts, state, snapshot.at)
        columns = columns_at(snapshot.at)
        notes: list[Span] = [(f"by {state.order}", "dim")]
        return Listing("ALERTS", columns, sections, lambda one: one.alert_id, notes, "No active alerts.")

    def summary(self) -> list[Span]:
        active, now = self.snapshot.alerts.last, self.snapshot.at
        return [(f" · {len(active)} active, {sum(one.is_news(now) for one in active)} new", "text")]

    def foot(self, width: int, height: int) -> list[Line]:
        room = min(DETAIL_MOST, max(DETAIL_LEAST, height // 3))
        return [] if self.current is None else detail_lines(self.current, self.snapshot.at, width, room)

    def run_id_of(self, row: AlertView) -> str | None:
        return row.run_id

    def context(self) -> Context:
        return replace(super().context(), alert=self.current)

    def copyable(self) -> Sequence[Copyable]:
        alert = self.current
        return [] if alert is None else [Copyable("the alert", clean(alert.sentence))]

    # --- actions

    def do_alert_run(self) -> None:
        run = self.run_in_question
        assert run is not None
        self.shell.open_run(run.run_id)

    def do_alert_moment(self) -> None:
        alert = self.current
        assert alert is not None
        self.app.pop_screen()
        self.shell.look_back(Moment(alert.raised_at))

    def do_acknowledge(self) -> None:
        alert = self.current
        assert alert is not None
        self.shell.ask("Acknowledge", "alert_ack", None, {"ids": [alert.alert_id]})
        self.move(1)

    def do_acknowledge_all(self) -> None:
        self.shell.ask("Acknowledge all", "alert_ack", None, {"ids": None})

    def do_silence(self) -> None:
        alert = self.current
        assert alert is not None

        def silence(chosen: Silence | None) -> None:
            if chosen is not None:
                target = {"rule": alert.rule} if chosen.is_everywhere else {"id": alert.alert_id}
                self.shell.ask("Silence", "alert_silence", None, {"seconds": chosen.seconds, **target})

        self.app.push_screen(SilenceScreen(alert, self.snapshot.at), silence)


# --- the list


def sections_of(alerts: AlertsState, state: ListState, now: float) -> list[ListSection[AlertView]]:
    """The filtered alerts: active ones in the chosen order, by severity the new ones first; then resolved ones."""
    words = state.filter_text.lower().split()
    active = [one for one in alerts.last if _matches(one, words)]
    active.sort(key=lambda one: (-one.raised_at, -one.alert_id))
    if state.order == "severity":
        active.sort(key=lambda one: (not one.is_news(now), SEVEREST_FIRST.index(one.severity)))
    resolved = [one for one in alerts.over if _matches(one, words)]
    return [ListSection("", active), *([ListSection("RESOLVED", resolved)] if resolved else [])]


def _title(rule_name: str) -> str:
    """The title of a rule; its name if this gputui does not know it."""
    # Imported on first use: most screens show no alerts.
    from gputui.recovery.watch.rules import RULES

    return RULES[rule_name].title if rule_name in RULES else clean(rule_name)


def _matches(alert: AlertView, words: Sequence[str]) -> bool:
    subject = f"{alert.subject_name} {alert.run_id or ''}"
    text = f"{alert.sentence} {alert.rule} {_title(alert.rule)} {alert.severity} {subject}".lower()
    return all(word in text for word in words)


def columns_at(now: float) -> list[Column[AlertView]]:
    """The columns of the list at a moment."""

    def sign(alert: AlertView, width: int) -> list[Span]:
        glyph, style = SIGNS[alert.severity]
        return [(glyph, style if alert.lasts else "dim")]

    def lasted(alert: AlertView, width: int) -> list[Span]:
        seconds = (now if alert.cleared_at is None else alert.cleared_at) - alert.raised_at
        # Rounded, so that it does not change with every second.
        step = 60 if seconds >= 60 else 10
        return [("<10 s" if seconds < 10 else duration(seconds // step * step), "dim")]

    def state(alert: AlertView, width: int) -> list[Span]:
        if not alert.lasts:
            return [("resolved", "dim")]
        if alert.is_silenced(now):
            return [("silenced", "dim")]
        return [("acked", "dim")] if alert.acknowledged_at is not None else [("new", "label")]

    def sentence(alert: AlertView, width: int) -> list[Span]:
        return [(clean(alert.sentence), "text" if alert.is_news(now) else "dim")]

    return [
        Column("", 1, sign),
        Column("SINCE", 12, lambda alert, _: [(dated_clock(alert.raised_at, now), "dim")], gap=1),
        Column("FOR", 11, lasted, gap=1, importance=1),
        Column("STATE", 8, state, gap=1),
        Column("ALERT", 20, sentence, gap=1, grow=1),
    ]


def detail_lines(alert: AlertView, now: float, width: int, height: int) -> list[Line]:
    """An alert in exactly ``height`` lines: sentence, remedy and history."""
    lines = [rule(_title(alert.rule).upper(), width, f"{alert.rule} · {alert.severity}")]
    history = " · ".join(_history(alert, now))
    for text, style in ((alert.sentence, "text"), (f"To do: {alert.remedy}", "accent"), (history, "dim")):
        lines += [fit_line([(f" {part}", style)], width) for part in wrap(clean(text), width - 2)]
    return [*lines[:height], *[fit_line([], width)] * (height - len(lines))]


def _history(alert: AlertView, now: float) -> list[str]:
    words = [f"raised {dated_clock(alert.raised_at, now)}"]
    if alert.cleared_at is not None:
        lasted = duration(max(0.0, alert.cleared_at - alert.raised_at))
        words.append(f"over {dated_clock(alert.cleared_at, now)} after {lasted}, {alert.cleared_because or ''}")
    if alert.acknowledged_at is not None:
        words.append(f"acked by {alert.acknowledged_by or '–'} {dated_clock(alert.acknowledged_at, now)}")
    if alert.silenced_until is not None and alert.is_silenced(now):
        words.append(f"silenced until {dated_clock(alert.silenced_until, now)} by {alert.silenced_by or '–'}")
    if alert.run_id is not None:
        words.append(f"run {alert.run_id}")
    return words
