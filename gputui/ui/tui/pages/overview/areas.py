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
        gpus: a function from the lines there are to those that the panel of GPUs takes.
        runs: how many runs and studies are listed.
        processes: how many processes are on GPUs.
        others: how many of the processes belong to no run.
        hidden: how many of the others no row of a GPU shows.
        events: how many events are listed.
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
    """The lines of each panel, with heading and frame; 0 for a panel that is not shown.

    Attributes:
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
    frame = 2 if is_framed else 1
    # Shared as without what passes, so that no panel moves for it but the events.
    whole = height + passing
    in_sight = _in_sight(whole, needs, frame, is_framed=is_framed)
    gpus = min(height, max(0, needs.gpus(max(2, whole - in_sight.runs - in_sight.events))))
    rest = max(0, whole - gpus)
    is_beside = bool(needs.processes) and width >= BESIDE_WIDTH
    events = in_sight.events
    if is_beside and events:
        # They share their lines with all processes.
        events = max(events, min(frame + 1 + needs.processes, rest // 3))
    all_runs = frame + max(1, needs.runs)
    runs_beside_charts = min(all_runs, frame + RUNS_BESIDE_CHARTS)
    spare = rest - runs_beside_charts - events
    processes = 0
    if events and not is_beside:
        processes = _few_processes(needs, frame, spare, all_runs - runs_beside_charts)
    # What passes may take the lines of events and runs down to these, and the charts stay.
    spare_at_least = height - gpus - in_sight.runs - in_sight.least_events
    charts = 0
    if needs.has_charts and min(spare, spare_at_least) - processes >= CHARTS_LEAST:
        charts = CHARTS_LEAST
    runs = max(0, min(all_runs, rest - events - charts - processes))
    if not is_beside:
        kept_events = max(events - passing, in_sight.least_events)
        runs = min(runs, max(in_sight.runs, height - gpus - charts - processes - kept_events))
    runs = min(runs, height - gpus)
    return _grown(Rows(gpus, runs, charts, processes, is_beside=is_beside), needs, height, frame)


class _InSight(NamedTuple):
    """The lines of runs and events that stay in sight.

    Attributes:
        runs: those that neither the GPUs nor what passes take.
        events: those that the GPUs do not take.
        least_events: those that also what passes does not take.
    """

    runs: int
    events: int
    least_events: int


def _in_sight(whole: int, needs: AreaNeeds, frame: int, *, is_framed: bool) -> _InSight:
    all_runs = frame + max(1, needs.runs)
    if whole < HEIGHT_OF_EVENTS:
        return _InSight(min(all_runs, frame + 2), events=0, least_events=0)
    few_events = FEW_EVENTS if is_framed else LEAST_EVENTS
    listed = max(1, needs.events)
    return _InSight(
        min(all_runs, frame + RUNS_IN_SIGHT),
        events=frame + min(few_events, listed),
        least_events=frame + min(LEAST_EVENTS, listed),
    )


def _few_processes(needs: AreaNeeds, frame: int, spare: int, more_runs: int) -> int:
    """The lines of a panel with a few processes, 0 if there is no room.

    Args:
        needs: the rows that each area could fill.
        frame: the lines of a panel beside its rows.
        spare: the lines that neither GPUs nor a few runs and events take.
        more_runs: the lines of the other runs.
    """
    if not needs.others:
        return 0
    lines = frame + 1 + min(FEW_PROCESSES, needs.others)
    needed = lines
    if not needs.hidden:
        # A row of a GPU shows each of them, so charts and all runs come first.
        needed += CHARTS_LEAST * needs.has_charts + more_runs
    if spare < needed:
        return 0
    return lines


def _grown(rows: Rows, needs: AreaNeeds, height: int, frame: int) -> Rows:
    """Share the lines that are left: to some events, higher charts, all processes and all events."""
    rest = height - rows.gpus - rows.runs - frame
    all_events = max(1, needs.events)
    some_events = min(SOME_EVENTS, all_events)
    if rows.is_beside:
        all_events = max(all_events, 1 + needs.processes)
        some_events = max(some_events, 1 + needs.processes)
    charts = rows.charts
    processes = rows.processes
    if charts:
        charts = _higher(charts, CHARTS_MOST, rest - processes - some_events)
    if processes:
        processes = _higher(processes, frame + 1 + needs.processes, rest - charts - some_events)
    if charts:
        charts = _higher(charts, height // CHARTS_SHARE, rest - processes - all_events)
    events = rest + frame - charts - processes
    if rows.is_beside and events >= frame + 3:
        return rows._replace(charts=charts, processes=events, events=events)
    return rows._replace(charts=charts, processes=processes, events=events, is_beside=False)


def _higher(lines: int, most: int, room: int) -> int:
    """The lines of a panel that may grow to ``most`` as far as there is ``room``."""
    return max(lines, min(most, room))
