"""The events, as text."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.store.events import EventView
from gputui.ui.tui.pages.overview.events import event_rows, events_panel
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import dated_clock
from tests.homes import NOW, Home
from tests.ui.tui.screens import read, text_of


def test_a_time_of_another_day_has_its_day() -> None:
    clocks = {0: "03:12:44", 3 * 3600: "00:12:44", 4 * 3600: "Fri 23:12", 86_400: "Fri 03:12",
             5 * 86_400: "Mon 03:12", 6 * 86_400: "15 Nov 03:12", 400 * 86_400: "17 Oct 2025 03:12"}  # fmt: skip
    assert {ago: dated_clock(NOW - ago, NOW) for ago in clocks} == clocks


def test_a_long_event_has_two_lines_or_keeps_its_begin_and_its_end(home: Home, workspace: Workspace) -> None:
    home.event("launched by ada", subject="gpt-1", seconds_ago=60.0)
    message = "lowered batch_size 128 → 64 and raised grad_accum 1 → 2, resuming from step_049400.safetensors"
    home.event(message, subject="gpt-1", seconds_ago=10.0)
    snapshot = read(workspace)
    whole = text_of(events_panel(snapshot, 80, 6))
    assert whole[1:] == [
        " 03:11:44   gpt-1  launched by ada",
        " 03:12:34   gpt-1  lowered batch_size 128 → 64 and raised grad_accum 1 → 2,",
        "                   resuming from step_049400.safetensors",
    ]
    assert text_of(events_panel(snapshot, 80, 3))[1:] == [
        " 03:11:44    gpt-1  launched by ada",
        " 03:12:34    gpt-1  lowered batch_size 128 → 64 an… from step_049400.safetensors",
    ]
    assert [row.event.event_id for row in event_rows(snapshot, 80, 6) if row.event is not None] == [1, 2, 2]
    for name in ("launched", "stopped", "resumed"):
        home.event(name, subject="gpt-1", seconds_ago=1.0)
    top = text_of(events_panel(read(workspace), 80, 5))[1]
    assert top == " 03:12:34   gpt-1  lowered batch_size 128 → 64 an…g from step_049400.safetensors", "no end alone"


def test_events_name_each_day_once() -> None:
    events = [EventView(number, NOW - ago, "info", None, None, None, None, None, "") for number, ago in
              enumerate((200_000.0, 100_000.0, 98_000.0, 60.0, 0.0))]  # fmt: skip
    days = ("Wed 18 Nov 2026", "Thu 19 Nov 2026", "Sat 21 Nov 2026")

    def rows(height: int, cursor: int | None = None) -> list[object]:
        rows = event_rows(Snapshot(NOW, events=tuple(events)), 80, height, cursor)
        return [row.text if row.event is None else row.event.event_id for row in rows]

    assert rows(9) == [days[0], 0, days[1], 1, 2, days[2], 3, 4]
    assert rows(6) == [days[1], 2, days[2], 3, 4]
    assert rows(3) == [3, 4]
    assert rows(4, cursor=0) == [days[0], 0, days[1]]
    # In few lines each event has its day.
    snapshot = replace(Snapshot(NOW), events=tuple(events))
    tops = [text_of(events_panel(snapshot, 40, *view))[1] for view in ((6,), (2, 2), (3, 3))]
    assert [top[1:10] for top in tops] == [days[1][:9], "Thu 23:59", "03:11:44 "]
