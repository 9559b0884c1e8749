"""How the lines of the overview are shared among its parts."""

from __future__ import annotations

from typing import NamedTuple

FOLDED_LEAST = 7
FOLDED_MOST = 14
RUNS_LEAST = 4
EVENTS_LEAST = 3


class Rows(NamedTuple):
    """Lines of each part, headings included."""

    aggregate: int
    gpus: int
    host: int
    runs: int
    events: int


def share_rows(height: int, *, gpus: int, runs: int, events: int, has_gpus: bool, is_folded: bool) -> Rows:
    """Share ``height`` lines: the GPUs get what they need as long as runs and events keep a few lines, then the runs
    what they need, then the events the rest. ``gpus`` counts GPUs, or the lines of the sentence in their place."""
    height = max(0, height)
    aggregate = 1 if has_gpus and height >= 8 else 0
    host = 1 if height >= 6 else 0
    left = height - aggregate - host
    kept = min(RUNS_LEAST, 1 + max(1, runs)) + EVENTS_LEAST
    if not has_gpus:
        wanted = gpus
    elif is_folded:
        wanted = min(FOLDED_MOST, max(FOLDED_LEAST, height // 3))
    else:
        wanted = gpus + 1
    most = max(min(left, 2), left - kept)
    gpu_rows = min(wanted, most)
    left -= gpu_rows
    wanted_runs = 1 + max(1, runs)
    wanted_events = 1 + max(1, events)
    run_rows = min(wanted_runs, max(min(left, 2), left - min(wanted_events, max(EVENTS_LEAST, left // 3))))
    return Rows(aggregate, gpu_rows, host, run_rows, max(0, left - run_rows))
