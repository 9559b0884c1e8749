"""How far a run was at a past moment, from the lines that it had written by then."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gputui.charts.safe_text import clean
from gputui.store import past_metrics
from gputui.store.past_metrics import PastLine
from gputui.store.views import RunView
from gputui.tui.data.progress import LOSS, RATE_WINDOW_SECONDS, SPARK_POINTS, rank_rows
from gputui.tui.data.snapshot import Progress


def past_progress(connection: sqlite3.Connection, run: RunView, at: float) -> tuple[Progress, tuple[str, ...]]:
    """How far ``run``, as it was, had come by ``at`` (UTC unix seconds), and the names of its metrics, harmless. Raises
    sqlite3.Error."""
    reached = past_metrics.places(connection, run.run_id, at)
    if not reached:
        return Progress(step=run.attempt_last_step), ()
    lines = past_metrics.newest(connection, reached)
    begin = past_metrics.first(connection, reached, run.attempt)
    newest = past_metrics.latest([*lines, *reversed(begin)])
    ranks = rank_rows(past_metrics.ranks(lines, run.attempt))
    step = max((rank.step for rank in ranks.values() if rank.step is not None), default=run.attempt_last_step)
    total = newest.get("total_steps")
    total_steps = int(total) if total is not None and total > 0 else None
    pace = _pace(connection, run, lines, at)
    left = None
    if run.state == "running" and pace and step is not None and total_steps is not None and step < total_steps:
        left = (total_steps - step) / pace
    losses = past_metrics.sampled(connection, reached, LOSS, SPARK_POINTS)
    progress = Progress(
        step=step,
        total_steps=total_steps,
        loss=newest.get(LOSS),
        losses=tuple(value for _, value in losses),
        steps_per_second=pace,
        seconds_left=left,
        newest_at=max((rank.at for rank in ranks.values() if rank.at is not None), default=None),
        ranks=ranks,
    )
    return progress, tuple(clean(name) for name in newest)


def _pace(connection: sqlite3.Connection, run: RunView, lines: Sequence[PastLine], at: float) -> float | None:
    """Steps per second over the last minute of the attempt."""
    end = _step(lines, run.attempt)
    if end is None:
        return None
    earlier = past_metrics.newest(
        connection, past_metrics.places(connection, run.run_id, end[0] - RATE_WINDOW_SECONDS), _FEW_LINES
    )
    start = _step(earlier, run.attempt) or _step(lines[::-1], run.attempt)
    if start is None or start[0] >= end[0] or start[1] >= end[1]:
        return None
    return (end[1] - start[1]) / (end[0] - start[0])


_FEW_LINES = 64


def _step(lines: Sequence[PastLine], attempt: int) -> tuple[float, int] | None:
    """When which step was done, by the first of the lines that tells it."""
    for line in lines:
        if line.attempt == attempt and line.rank in (None, 0) and line.step is not None and line.at is not None:
            return line.at, line.step
    return None
