"""The events at the bottom of the overview, the newest last."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import cell_width, clean
from gputui.core.units import UNKNOWN
from gputui.metrics.draw.parts import Line
from gputui.store.events import EventView
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import fit_line, rule, selected
from gputui.ui.tui.layout.gpu_words import with_indices
from gputui.ui.tui.layout.words import SEVERITY_GLYPHS, SEVERITY_STYLES, clock, dated_clock, day_name

NAME_MOST = 20
"""Most cells of the column of names."""

NAMED_DAYS = 4
"""Least lines, with the heading, in which days have rows of their own; in fewer each event has its day."""


def events_panel(snapshot: Snapshot, width: int, height: int, cursor: int | None = None) -> list[Line]:
    """A heading and the newest events; with a cursor, those around the event of that id."""
    events, now = snapshot.events, snapshot.at
    shown = event_rows(events, now, height, cursor)
    numbers = [number for number, event in enumerate(events, 1) if event in shown]
    note = ""
    if numbers and cursor is not None and len(numbers) < len(events):
        note = f"{numbers[0]}–{numbers[-1]} of {len(events)}"
    lines = [rule("EVENTS", width, note)]
    if not events and height > 1:
        lines.append(fit_line([("  No event is recorded.", "dim")], width))
    # Of all, so that the column holds still.
    names = {
        event.event_id: clean(with_indices(event.subject or event.run_id or "", snapshot.gpus)) for event in events
    }
    name_width = min(NAME_MOST, max(map(cell_width, names.values()), default=0))
    for row in shown:
        if isinstance(row, str):
            lines.append(fit_line([(f" {row}", "dim")], width))
        else:
            time = clock(row.at) if height >= NAMED_DAYS else f"{dated_clock(row.at, now):<9}"
            is_current = row.event_id == cursor
            spans = [
                ("▸" if is_current else " ", "cursor"),
                (f"{time} ", "dim"),
                (SEVERITY_GLYPHS.get(row.severity, " ") + " ", SEVERITY_STYLES.get(row.severity, "text")),
                *fit_line([(names[row.event_id], "label")], name_width),
                ("  ", "text"),
                (clean(with_indices(row.message, snapshot.gpus)) or UNKNOWN, "text"),
            ]
            line = fit_line(spans, width)
            lines.append(selected(line) if is_current else line)
    return lines[:height]


def event_rows(
    events: Sequence[EventView], now: float, height: int = 10_000, cursor: int | None = None
) -> list[EventView | str]:
    """The rows that fit below the heading: the newest events, or those around the event of that id. From `NAMED_DAYS`
    lines on, the name of the day stands above the first one and where it changes, unless all are of today."""
    rows: list[EventView | str] = []
    place, day = None, day_name(now)
    for event in events:
        if day_name(event.at) != day and height >= NAMED_DAYS:
            day = day_name(event.at)
            rows.append(day)
        if event.event_id == cursor:
            place = len(rows)
        rows.append(event)
    room, end = max(0, height - 1), len(rows)
    if place is not None:
        end = min(end, max(room, place + room // 2 + 1))
    shown = rows[max(0, end - room) : end]
    if height >= NAMED_DAYS and shown and not isinstance(shown[0], str) and day_name(shown[0].at) != day_name(now):
        shown[0] = day_name(shown[0].at)
    return shown
