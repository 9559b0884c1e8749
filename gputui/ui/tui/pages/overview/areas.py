"""Sharing the lines of the overview among its panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputui.ui.tui.layout.columns import is_boxed

HEIGHT_OF_EVENTS = 16
"""Least height of a page that always shows events."""

RUNS_IN_SIGHT = 4
RUNS_BESIDE_CHARTS = 6
FEW_EVENTS = 4
SOME_EVENTS = 8
"""Runs and events that stay in sight before there are charts, and events before these become higher."""

LEAST_EVENTS = 2
"""Events on a page without frames, and while an alert or a message takes a line: what happened, and what was done."""

FEW_PROCESSES = 2
"""Processes that stay in sight, where others than those of runs hold a GPU."""

CHARTS_LEAST = 5
CHARTS_MOST = 11
CHARTS_SHARE = 3
"""Lines of the charts: the least, and the most on a low page; on a high one they take up to a third."""

BESIDE_WIDTH = 150
"""From this width on, processes and events are side by side."""


class AreaNeeds(NamedTuple):
    """The rows that each area could fill.

    Attributes:
        gpus: the lines that the panel of GPUs takes of so many.
        runs, events: all that are listed.
        processes: those on GPUs.
        others: the processes of no run.
        hidden: those of them that no row of a GPU shows.
        has_charts: whether there may be charts of all GPUs.
    """

    gpus: Callable[[int], int]
    runs: int
    processes: int
    others: int
    hidden: int
    events: int
    has_charts: bool = True


class Rows(NamedTuple):
    """The lines of each panel, with heading and frame.

    Attributes:
        gpus, runs, charts, processes, events: 0 for a panel that is not shown.
        is_beside: whether processes and events share their lines.
    """

    gpus: int
    runs: int
    charts: int = 0
    processes: int = 0
    events: int = 0
    is_beside: bool = False


def share_rows(width: int, height: int, needs: AreaNeeds, *, is_framed: bool | None = None, passing: int = 0) -> Rows:
    """Share the lines of the overview among its panels.

    First come the GPUs, while some runs and events stay in sight; then, if some runs fit beside them, low charts of all
    GPUs. Then the runs take what they need; the processes follow, if any is of no run, before all runs are in sight
    only where no row of a GPU shows it. The rest goes to some events, higher charts, all processes and all events. A
    wide page has processes and events side by side.

    Args:
        width, height: the page without head and footer.
        needs: the rows that each area could fill.
        is_framed: whether panels have a frame; None for whether a page of this size has any.
        passing: lines of an alert or message, which are taken from the events and then from the runs, so that no panel
            goes for them.
    """
    if is_framed is None:
        is_framed = is_boxed(width, height + 2)
    # Lines of a panel beside its rows.
    frame = 1
    few_events = LEAST_EVENTS
    if is_framed:
        frame = 2
        few_events = FEW_EVENTS
    # Shared as without what passes, so that no panel moves for it but the events.
    whole = height + passing
    # The GPUs, while some runs and events stay in sight.
    runs = frame + max(1, needs.runs)
    events = least_events = 0
    runs_in_sight = min(runs, frame + 2)
    if whole >= HEIGHT_OF_EVENTS:
        least_events = frame + min(LEAST_EVENTS, max(1, needs.events))
        events = frame + min(few_events, max(1, needs.events))
        runs_in_sight = min(runs, frame + RUNS_IN_SIGHT)
    gpus = min(height, max(0, needs.gpus(max(2, whole - runs_in_sight - events))))
    rest = max(0, whole - gpus)
    # Low charts and some processes, if some runs fit beside them.
    is_beside = bool(needs.processes) and width >= BESIDE_WIDTH
    if is_beside and events:
        events = max(events, min(frame + 1 + needs.processes, rest // 3))
    spare = rest - min(runs, frame + RUNS_BESIDE_CHARTS) - events
    processes = 0
    if needs.others and not is_beside and events:
        processes = frame + 1 + min(FEW_PROCESSES, needs.others)
        needed = processes
        if not needs.hidden:
            needed += CHARTS_LEAST * needs.has_charts + runs - min(runs, frame + RUNS_BESIDE_CHARTS)
        if spare < needed:
            processes = 0
    least_spare = height - gpus - runs_in_sight - least_events
    charts = 0
    if needs.has_charts and min(spare, least_spare) - processes >= CHARTS_LEAST:
        charts = CHARTS_LEAST
    # The runs, and what passes.
    runs = max(0, min(runs, rest - events - charts - processes))
    if not is_beside:
        events = max(events - passing, least_events)
        runs = min(runs, max(runs_in_sight, height - gpus - charts - processes - events))
    runs = min(runs, height - gpus)
    # The rest.
    rest = height - gpus - runs - frame
    listed = max(1, needs.events)
    some = min(SOME_EVENTS, listed)
    if is_beside:
        listed = max(listed, 1 + needs.processes)
        some = max(some, 1 + needs.processes)
    if charts:
        charts = _higher(charts, CHARTS_MOST, rest - processes - some)
    if processes:
        processes = _higher(processes, frame + 1 + needs.processes, rest - charts - some)
    if charts:
        charts = _higher(charts, height // CHARTS_SHARE, rest - processes - listed)
    events = rest + frame - charts - processes
    if is_beside and events >= frame + 3:
        return Rows(gpus, runs, charts, events, events, is_beside=True)
    return Rows(gpus, runs, charts, processes, events)


def _higher(lines: int, most: int, room: int) -> int:
    """The lines of a panel that may grow to ``most`` as far as there is ``room``."""
    return max(lines, min(most, room))
