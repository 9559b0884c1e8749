"""Past moments as lines: the moment shown, and the time line that it lies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputui.core.text import cell_width
from gputui.core.units import age, duration
from gputui.metrics.draw.parts import Line, Span
from gputui.store.timeline import Timeline
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.views.snapshot import Past, Snapshot
from gputui.ui.views.words import clock, dated_clock, day_name

KeyWords = Mapping[str, str]
"""Printed keys by their actions; none on a page that is printed, where no key can be pressed."""

NO_KEYS: KeyWords = {}

LEAST_CELLS = 12  # a shorter line of time cannot be read

TICKS = {
    "event": ("┴", "axis"),
    "checkpoint": ("◆", "good"),
    "alert": ("▲", "warn"),
    "incident": ("✗", "bad"),
}
"""Sign and style of what happened, on the time line."""
_WEIGHTS = {kind: weight for weight, kind in enumerate(TICKS)}


def right_end(at: float, past: Past | None, keys: KeyWords = NO_KEYS) -> list[Span]:
    """The right end of a head line: the clock, or the past moment shown and the key that returns to the present."""
    if past is None:
        return [(clock(at) + " ", "text")]
    moment: Span = (f"◀ {past_words(at, past.now)}", "accent")
    if not keys.get("live"):
        return [moment, (" ", "text")]
    return [moment, (" · ", "dim"), (keys["live"], "key"), (" live ", "accent")]


def past_words(at: float, now: float) -> str:
    """``03:02:11 · 10 min ago``, with the day if it is not today."""
    ago = now - at
    if ago < 1:
        distance = "just now"
    elif ago < 3600:
        distance = f"{age(ago)} ago"
    else:
        distance = f"{duration(round(ago / 60) * 60)} ago"
    if day_name(at) == day_name(now):
        return f"{clock(at)} · {distance}"
    return f"{day_and_clock(at)} · {distance}"


def day_and_clock(at: float) -> str:
    """``Sat 21 Nov 2026 03:02:11``."""
    return f"{day_name(at)} {clock(at)}"


def time_line(past: Past, at: float, width: int) -> Line:
    """``02:13:00 ────  ──✗──◆──●──── now``: the recorded time, what happened, and the moment shown."""
    timeline = past.timeline
    start, end, cells = _ends(past, width)
    if cells < LEAST_CELLS:
        return fit_line([], width)
    line: Line = [(start, "dim")]
    for text, style in _cells(timeline, at, cells):
        if line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return fit_line([*line, (end, "dim")], width)


def time_at(past: Past, width: int, x: int) -> float | None:
    """The moment of column ``x`` of the time line; None outside it."""
    start, _, cells = _ends(past, width)
    cell = x - cell_width(start)
    if not 0 <= cell < cells or cells < LEAST_CELLS:
        return None
    timeline = past.timeline
    return timeline.start + (cell + 0.5) / cells * (timeline.end - timeline.start)


def _ends(past: Past, width: int) -> tuple[str, str, int]:
    """The texts at the ends of the time line, and the number of cells between."""
    start = f" {dated_clock(past.timeline.start, past.now)} "
    end = " now "
    return start, end, width - cell_width(start) - cell_width(end)


def _cells(timeline: Timeline, at: float, count: int) -> list[Span]:
    """The ``count`` cells of a time line between its ends."""
    cells: list[Span] = [(" ", "text")] * count
    for start, end in timeline.recorded:
        for cell in range(_cell(timeline, start, count), _cell(timeline, end, count) + 1):
            cells[cell] = ("─", "rule")
    for tick in sorted(timeline.ticks, key=lambda tick: _WEIGHTS[tick.kind]):
        cells[_cell(timeline, tick.at, count)] = TICKS[tick.kind]
    here = _cell(timeline, at, count)
    text = cells[here][0]
    if text in " ─":
        text = "●"
    cells[here] = (text, "selected")
    return cells


def _cell(timeline: Timeline, at: float, count: int) -> int:
    """The number of the cell, of ``count``, that a moment lies in."""
    length = timeline.end - timeline.start
    if length <= 0:
        return count - 1
    share = (at - timeline.start) / length
    return min(max(int(share * count), 0), count - 1)


def past_notices(snapshot: Snapshot) -> Sequence[str]:
    """A sentence if nothing was recorded at the moment shown, or if the wanted moment lies before the record."""
    past = snapshot.past
    if past is None:
        return ()
    if past.gap is None:
        request = past.request
        if request.ticks or request.direction > 0 or snapshot.at - request.at < 1:
            return ()
        return (f"The record begins here, at {day_and_clock(snapshot.at)}; nothing is known of before.",)
    start, end = past.gap
    if start is None:
        when = "yet" if end is None else f"before {day_and_clock(end)}"
        return (f"Nothing was recorded {when}; runs and events that are known of then are shown.",)
    last = dated_clock(start, snapshot.at)
    when = f"since {last}"
    if end is not None:
        when = f"from {last} to {dated_clock(end, snapshot.at)}"
    return (
        f"Nothing was recorded {when}: no recorder ran, or the machine slept. GPUs and host are shown as they were at "
        f"{last}.",
    )
