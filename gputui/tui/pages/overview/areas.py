"""How the lines of the overview are shared among its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TRENDS_LEAST = 7
TRENDS_MOST = 11
"""Odd, so that with title and axis a chart has as many rows as its ticks need: 0, 50 and 100 at equal distances."""

RUNS_LEAST = 4
EVENTS_LEAST = 3
EVENTS_BESIDE_CHARTS = 5
"""Charts stay while events arrive: of these four are shown, and a heading."""

AIR_LEAST = 36
"""From so many lines on there is a blank line above runs and events."""


class Rows(NamedTuple):
    """Lines of each part, headings included."""

    aggregate: int
    gpus: int
    trends: int
    cards: int
    host: int
    runs: int
    events: int
    air: int = 0
    """Blank lines: half of them above the runs, half above the events."""


def share_rows(
    height: int,
    *,
    gpus: Callable[[int], int],
    cards: Callable[[int], int],
    runs: int,
    events: int,
    has_gpus: bool,
    is_folded: bool,
) -> Rows:
    """Share ``height`` lines: the GPUs get what they need as long as runs and events keep a few lines, then the runs
    what they need, then the trends of all GPUs together, and after them a card per busy GPU, as long as some events
    are left in sight: charts neither come nor go with events. Folded, the trends take the place of the GPUs' rows.
    ``gpus`` and ``cards`` say how many lines those take when they may have so many."""
    height = max(0, height)
    aggregate = 1 if has_gpus and height >= 8 else 0
    host = 1 if height >= 6 else 0
    air = 2 if height >= AIR_LEAST else 0
    left = height - aggregate - host - air
    kept = min(RUNS_LEAST, 1 + max(1, runs)) + EVENTS_LEAST
    most = max(min(left, 2), left - kept)
    if has_gpus and is_folded:
        gpu_rows, trends = 0, min(most, max(TRENDS_LEAST, min(TRENDS_MOST + 2, height // 3)))
    else:
        gpu_rows, trends = min(gpus(most), most), 0
    left -= gpu_rows + trends
    wanted_runs, wanted_events = 1 + max(1, runs), 1 + max(1, events)
    run_rows = min(wanted_runs, max(min(left, 2), left - min(wanted_events, max(EVENTS_LEAST, left // 3))))
    event_rows = max(0, left - run_rows)
    card_rows = 0
    if has_gpus and gpu_rows == gpus(height):
        spare = event_rows - EVENTS_BESIDE_CHARTS
        if not is_folded and spare >= TRENDS_LEAST:
            trends = max(TRENDS_LEAST, min(TRENDS_MOST, spare // 2 // 2 * 2 + 1))
            spare -= trends
        if trends:
            card_rows = cards(max(0, spare))
        event_rows = left - run_rows - card_rows - (0 if is_folded else trends)
    return Rows(aggregate, gpu_rows, trends, card_rows, host, run_rows, event_rows, air)
