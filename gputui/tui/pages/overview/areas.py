"""How the lines of the overview are shared among its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TRENDS_LEAST = 7
TRENDS_MOST = 11
"""Odd, so that with title and axis a chart has as many rows as its ticks need: 0, 50 and 100 at equal distances."""

FOLDED_TRENDS_MOST = TRENDS_MOST + 2
FOLDED_TRENDS_SHARE = 3
"""Folded, the trends take one of so many lines."""

HOST_FROM = 6
AGGREGATE_FROM = 8
"""From so many lines on there is one for the host, and one for all GPUs together."""

PART_LEAST = 2
"""A heading and a line."""

RUNS_LEAST = 4
EVENTS_LEAST = 3
EVENTS_SHARE = 3
"""Of what the GPUs leave over, events keep one of so many lines where there are many runs."""

EVENTS_BESIDE_CHARTS = 5
"""Charts stay while events arrive: of these four are shown, and a heading."""

AIR_FROM = 36
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
    run_rows = _rows_of_runs(unshared, wanted_runs, wanted_events)
    event_rows = unshared - run_rows
    spare = max(0, event_rows - EVENTS_BESIDE_CHARTS)
    if has_gpus and is_folded:
        card_rows = cards(spare)
    elif has_gpus and gpu_rows == gpus(height):
        trends, card_rows = _rows_of_charts(spare, cards)
        event_rows -= trends
    return Rows(aggregate, gpu_rows, trends, card_rows, host, run_rows, event_rows - card_rows, air)


def _rows_of_runs(unshared: int, wanted: int, wanted_events: int) -> int:
    """What the runs want, as long as events keep what they want or their share."""
    events = min(wanted_events, max(EVENTS_LEAST, unshared // EVENTS_SHARE))
    return min(wanted, max(min(unshared, PART_LEAST), unshared - events))


def _rows_of_charts(spare: int, cards: Callable[[int], int]) -> tuple[int, int]:
    """The trends, about half of what events can spare, and the cards below them."""
    if spare < TRENDS_LEAST:
        return 0, 0
    odd_half = spare // 4 * 2 + 1
    trends = max(TRENDS_LEAST, min(TRENDS_MOST, odd_half))
    return trends, cards(spare - trends)
