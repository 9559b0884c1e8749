"""How the lines of the overview are shared among its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TRENDS_LEAST = 8
TRENDS_MOST = 12
RUNS_LEAST = 4
EVENTS_LEAST = 3


class Rows(NamedTuple):
    """Lines of each part, headings included."""

    aggregate: int
    gpus: int
    trends: int
    cards: int
    host: int
    runs: int
    events: int


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
    what they need, then the events; where enough is left the trends of all GPUs together, and after them a card per
    GPU. Folded, the trends take the place of the GPUs' rows. ``gpus`` and ``cards`` say how many lines those take when
    they may have so many."""
    height = max(0, height)
    aggregate = 1 if has_gpus and height >= 8 else 0
    host = 1 if height >= 6 else 0
    left = height - aggregate - host
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
        spare = event_rows - wanted_events
        if not is_folded and spare >= TRENDS_LEAST:
            trends = min(TRENDS_MOST, spare)
            spare -= trends
        if trends:
            card_rows = cards(max(0, spare))
        event_rows = left - run_rows - card_rows - (0 if is_folded else trends)
    return Rows(aggregate, gpu_rows, trends, card_rows, host, run_rows, event_rows)
