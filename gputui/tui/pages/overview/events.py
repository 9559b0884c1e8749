"""The events at the bottom of the overview, the newest last."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN
from gputui.store.events import EventView
from gputui.tui.layout.columns import clip_line, fit_line, rule, selected
from gputui.tui.layout.words import SEVERITY_GLYPHS, SEVERITY_STYLES, moment


def events_lines(
    events: Sequence[EventView], now: float, width: int, height: int, cursor: int | None = None
) -> list[Line]:
    """A heading and the newest events; with a cursor, those around the event of that id."""
    shown = events_shown(events, height, cursor)
    note = ""
    if cursor is not None and shown and len(shown) < len(events):
        first = next(number for number, event in enumerate(events, 1) if event is shown[0])
        note = f"{first}–{first + len(shown) - 1} of {len(events)}"
    lines = [rule("EVENTS", width, note)]
    if not events and height > 1:
        lines.append(fit_line([("  Nothing has happened yet.", "dim")], width))
    lines += [event_line(event, now, width, is_current=event.event_id == cursor) for event in shown]
    return lines[:height]


def events_shown(events: Sequence[EventView], height: int, cursor: int | None = None) -> list[EventView]:
    """The events that fit below the heading: the newest ones, or those around the event of that id."""
    room = max(0, height - 1)
    end = len(events)
    place = next((number for number, event in enumerate(events) if event.event_id == cursor), None)
    if place is not None:
        end = min(end, max(room, place + room // 2 + 1))
    return list(events[max(0, end - room) : end]) if room else []


def event_line(event: EventView, now: float, width: int, *, is_current: bool = False) -> Line:
    """``03:02:11  vit-b16-1  GPU 7 fell off the bus``."""
    style = SEVERITY_STYLES.get(event.severity, "text")
    subject = event.subject or event.run_id
    line = fit_line(
        clip_line(
            [
                ("▸" if is_current else " ", "cursor"),
                (f"{moment(event.at, now)} ", "dim"),
                (SEVERITY_GLYPHS.get(event.severity, " ") + " ", style),
                (f"{clean(subject)}  " if subject else "", "label"),
                (clean(event.message) or UNKNOWN, "text"),
            ],
            width,
        ),
        width,
    )
    return selected(line) if is_current else line
