"""Sharing the lines of the overview among its areas."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TRENDS_LEAST = 7
TRENDS_MOST = 11
"""Odd, so that with title and axis a chart has as many rows as its ticks need: 0, 50 and 100 at equal distances."""

FOLDED_TRENDS_MOST = TRENDS_MOST + 2
FOLDED_TRENDS_SHARE = 3
"""With the GPUs folded, the trends take this fraction (1/n) of the lines."""

HOST_FROM = 6
AGGREGATE_FROM = 8
"""Least height of a page with a line for the host, and with one for all GPUs together."""

PART_LEAST = 2
"""A heading and a line."""

RUNS_LEAST = 4
EVENTS_LEAST = 3
EVENTS_SHARE = 3
"""However many runs there are, events keep this fraction (1/n) of the lines that the GPUs leave."""

EVENTS_BESIDE_CHARTS = 5
"""Lines that charts leave to the events: a heading and four events."""

AIR_FROM = 36
"""Least height of a page with a blank line above runs and events."""


class Rows(NamedTuple):
    """Lines of each area, headings included."""

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
    passing: int = 0,
) -> Rows:
    """Share ``height`` lines.

    First come the GPUs, while runs and events keep a few lines; then the runs, the trends of all GPUs, and a card per
    busy GPU. `EVENTS_BESIDE_CHARTS` lines of events remain, so that charts neither come nor go with events. With the
    GPUs folded, the trends replace their rows.

    Args:
        height: lines of the page without its frame.
        gpus, cards: how many lines these take if they may have so many.
        runs, events: how many there are.
        has_gpus: whether any GPU is known.
        is_folded: whether the trends replace the rows of the GPUs.
        passing: lines that something passing, such as an alert, takes from ``height``. Events give them up, so that
            no chart goes for it.
    """
    height = max(0, height)
    aggregate = 1 if has_gpus and height >= AGGREGATE_FROM else 0
    host = 1 if height >= HOST_FROM else 0
    air = 2 if height >= AIR_FROM else 0
    wanted_runs, wanted_events = 1 + max(1, runs), 1 + max(1, events)
    unshared = height - aggregate - host - air
    least_below = min(RUNS_LEAST, wanted_runs) + EVENTS_LEAST
    gpu_room = max(min(unshared, PART_LEAST), unshared - least_below)
    gpu_rows = trends = card_rows = 0
    if has_gpus and is_folded:
        trends = min(gpu_room, max(TRENDS_LEAST, min(FOLDED_TRENDS_MOST, height // FOLDED_TRENDS_SHARE)))
    else:
        gpu_rows = min(gpu_room, gpus(gpu_room))
    unshared -= gpu_rows + trends
    least_events = min(wanted_events, max(EVENTS_LEAST, unshared // EVENTS_SHARE))
    run_rows = min(wanted_runs, max(min(unshared, PART_LEAST), unshared - least_events))
    event_rows = unshared - run_rows
    spare = max(0, event_rows - max(EVENTS_LEAST, EVENTS_BESIDE_CHARTS - passing))
    if has_gpus and is_folded:
        card_rows = cards(spare)
    elif has_gpus and gpu_rows == gpus(height):
        if spare >= TRENDS_LEAST:
            odd_half = spare // 4 * 2 + 1
            trends = max(TRENDS_LEAST, min(TRENDS_MOST, odd_half))
            card_rows = cards(spare - trends)
        event_rows -= trends
    return Rows(aggregate, gpu_rows, trends, card_rows, host, run_rows, event_rows - card_rows, air)
