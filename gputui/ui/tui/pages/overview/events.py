"""The events at the bottom of the overview, the newest last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import UNKNOWN
from gputui.metrics.draw.parts import Line, Span
from gputui.store.events import EventView
from gputui.ui.tui.layout.columns import fit_line, highlight, rule, wrap
from gputui.ui.tui.layout.gpu_words import with_indices
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import SEVERITY_GLYPHS, SEVERITY_STYLES, clock, dated_clock, day_name

NAME_MOST = 20
"""Most cells of the column of names."""

NAMED_DAYS = 4
"""Least lines, with the heading, in which days have rows of their own, and long events two lines; in fewer each event
has its day."""

_SIGNS = "▸ ✗ "
"""The cursor, the sign of the severity, and the blanks around the time between them."""

_TIME = len("03:11:54")
_DATED_TIME = len("Fri 03:11")
_GAP = "  "


class EventRow(NamedTuple):
    """One row: a part of an event's message, or the name of a day.

    Attributes:
        event: None for the name of a day.
        is_first: whether it is the beginning of the message.
    """

    text: str
    event: EventView | None = None
    is_first: bool = True


def events_panel(snapshot: Snapshot, width: int, height: int, cursor: int | None = None) -> list[Line]:
    """A heading and the newest events; with a cursor, those around the event of that id."""
    rows = event_rows(snapshot, width, height, cursor)
    note = ""
    if cursor is not None:
        note = _part_words(snapshot.events, rows)
    lines = [rule("EVENTS", width, note)]
    if not snapshot.events and height > 1:
        lines.append(fit_line([("  No event is recorded.", "dim")], width))
    for row in rows:
        if row.event is None:
            lines.append(fit_line([(f" {row.text}", "dim")], width))
            continue
        is_current = row.event.event_id == cursor
        before: list[Span] = [(" " * (len(_SIGNS) + _TIME + _name_width(snapshot)), "text")]
        if row.is_first:
            before = _row_head(row.event, snapshot, is_current=is_current, is_dated=height < NAMED_DAYS)
        line = fit_line([*before, (_GAP + row.text, "text")], width)
        if is_current:
            line = highlight(line)
        lines.append(line)
    return lines[:height]


def _part_words(events: Sequence[EventView], rows: Sequence[EventRow]) -> str:
    """Which events are visible: ``12–20 of 40``; nothing if all are."""
    numbers = [number for number, event in enumerate(events, 1) if any(row.event is event for row in rows)]
    if not numbers or len(numbers) == len(events):
        return ""
    return f"{numbers[0]}–{numbers[-1]} of {len(events)}"


def _row_head(event: EventView, snapshot: Snapshot, *, is_current: bool, is_dated: bool) -> list[Span]:
    """What stands before a message: the cursor, the time, the severity and the name of the subject."""
    pointer = " "
    if is_current:
        pointer = "▸"
    time = clock(event.at)
    if is_dated:
        time = f"{dated_clock(event.at, snapshot.at):<{_DATED_TIME}}"
    name = fit_line([(_name(event, snapshot), "label")], _name_width(snapshot))
    return [(pointer, "cursor"), (f"{time} ", "dim"), _severity_sign(event), *name]


def _severity_sign(event: EventView) -> Span:
    return f"{SEVERITY_GLYPHS.get(event.severity, ' ')} ", SEVERITY_STYLES.get(event.severity, "text")


def event_rows(snapshot: Snapshot, width: int, height: int = 10_000, cursor: int | None = None) -> list[EventRow]:
    """The rows that fit below the heading: the newest events, or those around one.

    From `NAMED_DAYS` lines on, the name of the day stands above the first one and where it changes, unless all are of
    today; below, long messages keep their begin and their end, which says how a run goes on.

    Args:
        height: the lines of the panel with its heading.
        cursor: the id of the event under the cursor; None for the newest events.
    """
    has_days = height >= NAMED_DAYS
    time_width = _TIME if has_days else _DATED_TIME
    room = max(1, width - len(_SIGNS) - time_width - _name_width(snapshot) - len(_GAP))
    rows: list[EventRow] = []
    cursor_row = None
    day = day_name(snapshot.at)
    for event in snapshot.events:
        if has_days and day_name(event.at) != day:
            day = day_name(event.at)
            rows.append(EventRow(day))
        if event.event_id == cursor:
            cursor_row = len(rows)
        message = _message(event, snapshot)
        parts: Sequence[str] = (clip_middle(message, room),)
        if has_days:
            parts = _two_lines(message, room)
        rows += [EventRow(part, event, not number) for number, part in enumerate(parts)]
    visible = _around(rows, cursor_row, max(0, height - 1))
    first = visible[0].event if visible else None
    if first is not None and not visible[0].is_first:
        # Its first line has no room.
        visible[0] = EventRow(clip_middle(_message(first, snapshot), room), first)
    if has_days and first is not None and day_name(first.at) != day_name(snapshot.at):
        visible[0] = EventRow(day_name(first.at))
    return visible


def _around(rows: Sequence[EventRow], cursor_row: int | None, count: int) -> list[EventRow]:
    """So many of the newest rows, or those with the row of the cursor in their middle."""
    end = len(rows)
    if cursor_row is not None:
        end = min(end, max(count, cursor_row + count // 2 + 1))
    return list(rows[max(0, end - count) : end])


@lru_cache(512)
def _two_lines(message: str, room: int) -> tuple[str, ...]:
    """A message in one or two lines. Cached, because most events stay in sight for hours."""
    if cell_width(message) <= room:
        return (message,)
    first, *others = wrap(message, max(1, room))
    return first, " ".join(others)


def _message(event: EventView, snapshot: Snapshot) -> str:
    return clean(with_indices(event.message, snapshot.gpus)) or UNKNOWN


def _name(event: EventView, snapshot: Snapshot) -> str:
    return clean(with_indices(event.subject or event.run_id or "", snapshot.gpus))


def _name_width(snapshot: Snapshot) -> int:
    """The cells of the column of names, of all events, so that it holds still."""
    widest = max((cell_width(_name(event, snapshot)) for event in snapshot.events), default=0)
    return min(NAME_MOST, widest)
