"""The page of alerts: the active and the resolved ones, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult

from gputui.core.text import clean
from gputui.store.alerts import AlertView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import Interest, Moment, Snapshot
from gputui.ui.tui.dialogs.questions import Silence, SilenceScreen
from gputui.ui.tui.layout.alerts import (
    AlertsTable,
    Order,
    detail_lines,
    room_for_rows,
    row_of,
    shown_alerts,
    table_lines,
)
from gputui.ui.tui.widgets.list_page import ListPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.tui.widgets.pane import Pane

# Lines of both parts; the detail is left out if the list would get fewer.
LIST_LEAST = 4
DETAIL_LEAST, DETAIL_MOST = 4, 8


class _Listed(NamedTuple):
    """The listed alerts, and the snapshot and settings that they were computed from."""

    snapshot: Snapshot
    filter_text: str
    order: Order
    alerts: list[AlertView]


class AlertsScreen(ListPage):
    """A table with a cursor, and below it the alert under the cursor in full."""

    SCOPE: ClassVar[Scope] = "alerts"

    table: AlertsTable

    def __init__(self) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.list = Pane(id="alerts")
        self.detail = Pane(id="detail")
        self.table = AlertsTable()
        self._listed: _Listed | None = None

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.list, self.detail, self.message, self.footer)

    def interest(self) -> Interest:
        return Interest(alerts=True)

    # --- what it is about

    @property
    def shown(self) -> list[AlertView]:
        """The filtered and sorted alerts, computed once per snapshot."""
        snapshot, filter_text, order = self.snapshot, self.table.filter_text, self.table.order
        listed = self._listed
        is_same = listed is not None and (listed.filter_text, listed.order) == (filter_text, order)
        if listed is None or not is_same or listed.snapshot is not snapshot:
            alerts = shown_alerts(snapshot.alerts, self.table, snapshot.at)
            listed = self._listed = _Listed(snapshot, filter_text, order, alerts)
        return listed.alerts

    @property
    def alert(self) -> AlertView | None:
        """The alert under the cursor."""
        return next((one for one in self.shown if one.alert_id == self.table.cursor), None)

    @property
    def run_in_question(self) -> Run | None:
        return None if self.alert is None else self.snapshot.run_of(self.alert.run_id)

    def context(self) -> Context:
        return replace(super().context(), alert=self.alert)

    def copyable(self) -> Sequence[Copyable]:
        alert = self.alert
        return [] if alert is None else [Copyable("the alert", clean(alert.sentence))]

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        self.keep_cursor()
        self.head.show([self.machine_head(width)])
        left = height - 1 - self.draw_frame(width)
        detail = detail_lines(self.alert, snapshot.at, width, min(DETAIL_MOST, max(DETAIL_LEAST, left // 3)))
        detail = detail if left - len(detail) >= LIST_LEAST else []
        room = left - len(detail)
        self.page_rows = room_for_rows(room) - 1
        self.scroll_to_cursor(room_for_rows(room))
        lines = table_lines(self.shown, self.table, snapshot.at, width, room)
        self.list.show(self.with_filter(lines, width), height=room)
        self.detail.fit(detail)

    @property
    def row_ids(self) -> list[int]:
        return [one.alert_id for one in self.shown]

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked alert; a double click opens its run."""
        chosen = row_of(self.shown, self.table, event.y) if event.widget is self.list else None
        if chosen is not None:
            self.point_at(chosen.alert_id)
            self.changed()
            if event.chain == 2 and self.run_in_question is not None:
                self.do_alert_run()

    # --- actions

    def do_back(self) -> None:
        if self.table.filter_text:
            self.set_filter("")
            self.changed()
        else:
            self.app.pop_screen()

    def do_alert_run(self) -> None:
        run = self.run_in_question
        assert run is not None
        self.shell.open_run(run.run_id)

    def do_alert_moment(self) -> None:
        alert = self.alert
        assert alert is not None
        self.app.pop_screen()
        self.shell.look_back(Moment(alert.raised_at))

    def do_acknowledge(self) -> None:
        alert = self.alert
        assert alert is not None
        self.shell.ask("Acknowledge", "alert_ack", None, {"ids": [alert.alert_id]})
        self.move(1)

    def do_acknowledge_all(self) -> None:
        self.shell.ask("Acknowledge all", "alert_ack", None, {"ids": None})

    def do_silence(self) -> None:
        alert = self.alert
        assert alert is not None

        def silence(chosen: Silence | None) -> None:
            if chosen is not None:
                target = {"rule": alert.rule} if chosen.is_everywhere else {"id": alert.alert_id}
                self.shell.ask("Silence", "alert_silence", None, {"seconds": chosen.seconds, **target})

        self.app.push_screen(SilenceScreen(alert, self.snapshot.at), silence)

    def do_sort(self) -> None:
        self.table = replace(self.table, order="time" if self.table.order == "severity" else "severity", top=0)
