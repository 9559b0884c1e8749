"""Sharing the lines of the overview among its panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputui.ui.tui.layout.columns import is_boxed

HEIGHT_OF_EVENTS = 16
"""Least height of a page that always shows events."""

RUNS_BESIDE_CHARTS, FEW_EVENTS, SOME_EVENTS = 6, 3, 8
"""Runs and events that stay in sight before there are charts, and events before these become higher."""

FEW_PROCESSES = 2
"""Processes that stay in sight, where others than those of runs hold a GPU."""

CHARTS_LEAST, CHARTS_MOST, CHARTS_SHARE = 7, 11, 3
"""Lines of the charts: the least, and the most on a low page; on a high one they take up to a third."""

BESIDE_WIDTH = 150
"""From this width on, processes and events are side by side."""


class Wanted(NamedTuple):
    """The wanted lines of each area: ``gpus`` gives the lines of that panel if it may have so many; the others count
    rows. ``others`` are the processes of no run, ``hidden`` those of them that no row of a GPU shows."""

    gpus: Callable[[int], int]
    runs: int
    processes: int
    others: int
    hidden: int
    events: int
    has_charts: bool = True


class Rows(NamedTuple):
    """Lines of each panel, with heading and frame. ``is_beside``: processes and events share their lines."""

    gpus: int
    runs: int
    charts: int = 0
    processes: int = 0
    events: int = 0
    is_beside: bool = False


def share_rows(width: int, height: int, wanted: Wanted, *, is_framed: bool | None = None, passing: int = 0) -> Rows:
    """Share ``height`` lines of a page without head and footer.

    First come the GPUs, while some runs and events stay in sight; then, if some runs fit beside them, low charts of all
    GPUs and some processes, if any is of no run. Then the runs take what they need, and the rest goes to the processes,
    to the charts as far as no event needs it, and to the events. A wide page has processes and events side by side.
    ``passing`` lines of an alert or message are taken from the events, so that no panel goes for them.
    """
    is_framed = is_boxed(width, height + 2) if is_framed is None else is_framed
    frame = 2 if is_framed else 1
    # As without what passes, so that no panel moves for it but the events.
    whole = height + passing
    runs = frame + max(1, wanted.runs)
    events = 0
    if whole >= HEIGHT_OF_EVENTS:
        events = frame + min(FEW_EVENTS if is_framed else 2, max(1, wanted.events))
    runs_in_sight = min(runs, frame + (4 if events else 2))
    gpus = min(height, max(0, wanted.gpus(max(2, whole - runs_in_sight - events))))
    rest = max(0, whole - gpus)
    is_beside = bool(wanted.processes) and width >= BESIDE_WIDTH
    if is_beside and events:
        events = max(events, min(frame + 1 + wanted.processes, rest // 3))
    spare = rest - min(runs, frame + RUNS_BESIDE_CHARTS) - events
    processes = 0
    if wanted.others and not is_beside and events:
        processes = frame + 1 + min(FEW_PROCESSES, wanted.others)
        if spare < processes + CHARTS_LEAST * (wanted.has_charts and not wanted.hidden):
            processes = 0
    charts = CHARTS_LEAST if wanted.has_charts and spare - processes >= CHARTS_LEAST else 0
    runs = max(0, min(runs, rest - events - charts - processes, height - gpus))
    rest = max(0, height - gpus - runs)
    if is_beside and rest - charts >= frame + 3:
        if charts:
            room, listed = rest - frame, 1 + wanted.processes
            charts = _higher(charts, CHARTS_MOST, room - max(listed, min(wanted.events, SOME_EVENTS)))
            charts = _higher(charts, height // CHARTS_SHARE, room - max(listed, wanted.events))
        return Rows(gpus, runs, charts, rest - charts, rest - charts, is_beside=True)
    events = min(rest, max(0, events - passing))
    if processes:
        processes = max(processes, min(frame + 1 + wanted.processes, rest - charts - events))
    rest -= processes
    if charts:
        charts = _higher(charts, max(CHARTS_MOST, height // CHARTS_SHARE), rest - frame - max(1, wanted.events))
    return Rows(gpus, runs, charts, processes, rest - charts)


def _higher(charts: int, most: int, room: int) -> int:
    """The lines of charts that may grow to ``most`` as far as there is ``room``."""
    return max(charts, min(most, room))
