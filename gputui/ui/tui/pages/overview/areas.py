"""Sharing the lines of the overview among its panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputui.ui.tui.layout.columns import is_boxed

HEIGHT_OF_EVENTS = 16
"""Least height of a page that always shows events."""

RUNS_BESIDE_CHARTS, FEW_EVENTS, SOME_EVENTS = 6, 3, 8
"""Runs and events that stay in sight before there are charts, and events before these become higher."""

CHARTS_LEAST, CHARTS_MOST = 7, 11

BESIDE_WIDTH = 150
"""From this width on, processes and events are side by side."""


class Wanted(NamedTuple):
    """The wanted lines of each area: ``gpus`` gives the lines of that panel if it may have so many;
    the others count rows. ``others`` are the processes that no row of a GPU shows."""

    gpus: Callable[[int], int]
    runs: int
    processes: int
    others: int
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

    First come the GPUs, while some runs and events stay in sight; then the charts of all GPUs, low ones, if some runs
    fit beside them; then the runs, and beside the events, if the page is wide, processes for a third. Charts become
    higher where nothing else needs the lines. ``passing`` lines of an alert or message are taken from the events, so
    that no panel goes for them.
    """
    is_framed = is_boxed(width, height + 2) if is_framed is None else is_framed
    frame = 2 if is_framed else 1
    # As without what passes, so that no panel moves for it but the events.
    whole = height + passing
    wanted_runs = frame + max(1, wanted.runs)
    few_events = 0
    if whole >= HEIGHT_OF_EVENTS:
        few_events = frame + min(FEW_EVENTS if is_framed else 2, max(1, wanted.events))
    few_runs = min(wanted_runs, frame + (4 if few_events else 2))
    gpus = min(height, max(0, wanted.gpus(max(2, whole - few_runs - few_events))))
    left = max(0, whole - gpus)
    is_beside = bool(wanted.processes) and width >= BESIDE_WIDTH
    if is_beside and few_events:
        few_events = max(few_events, min(frame + 1 + wanted.processes, left // 3))
    beside_charts = min(wanted_runs, frame + RUNS_BESIDE_CHARTS) + few_events
    charts = CHARTS_LEAST if wanted.has_charts and left >= beside_charts + CHARTS_LEAST else 0
    runs = max(0, min(wanted_runs, left - few_events - charts, height - gpus))
    left = max(0, height - gpus - runs)
    few_events = min(left, max(0, few_events - passing))
    if is_beside and left - charts >= frame + 3:
        needed = frame + max(1 + wanted.processes, min(wanted.events, SOME_EVENTS))
        charts += max(0, min(CHARTS_MOST - charts, left - charts - needed)) if charts else 0
        return Rows(gpus, runs, charts, left - charts, left - charts, is_beside=True)
    left -= charts
    spare = left - few_events
    processes = min(frame + 1 + wanted.processes, spare) if wanted.others and spare >= frame + 3 else 0
    left -= processes
    # Charts take what no event fills.
    higher = max(0, min(CHARTS_MOST - charts, left - frame - max(1, wanted.events))) if charts else 0
    return Rows(gpus, runs, charts + higher, processes, left - higher)
