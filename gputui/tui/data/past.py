"""What looking back adds to reading: the moment that is meant, and of charts, logs and progress what there was then."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from gputui.charts.safe_text import clean
from gputui.curves.model import ChartData, ChartRequest
from gputui.curves.past import Standing, cut
from gputui.runs.log_lines import lines_by
from gputui.store import timeline
from gputui.store.metrics import past
from gputui.store.metrics.past import PastLine
from gputui.store.runs import Run, read_attempts
from gputui.tui.data.curves import CurveReader
from gputui.tui.data.progress import LOSS, RATE_WINDOW_SECONDS, SPARK_POINTS, rank_rows
from gputui.tui.data.run_details import RunPageReader
from gputui.tui.data.snapshot import Interest, LogTail, Moment, Past, Progress, RunPage

SPANS_SECONDS = (1200.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0, 31 * 86_400.0, 366 * 86_400.0)
"""How much of the record the time line shows: the shortest stretch up to the present that holds the moment well."""

HELD_WELL = 0.85
"""The moment lies in this much of the time line, so that there is something before it."""

TIMELESS = "as it is now: its lines tell no time"
UP_TO_THEN = "as far as it was written then"
TOO_LONG_AGO = "What had been written by then lies further back; gputui logs has all of it."

_FEW_LINES = 64


def past_of(connection: sqlite3.Connection, moment: Moment, now: float) -> tuple[float, Past]:
    """The moment that is meant and a line of the record around it; times are UTC unix seconds. Raises sqlite3.Error."""
    at = timeline.resolve(connection, moment.at, moment.ticks, moment.direction, now)
    return at, Past(
        asked=moment,
        now=now,
        timeline=timeline.timeline(connection, shown_from(at, timeline.began_at(connection), now), now),
        gap=timeline.gap_at(connection, at),
    )


def shown_from(at: float, began: float | None, now: float) -> float:
    """Where the time line begins."""
    span = next((span for span in SPANS_SECONDS if now - at <= span * HELD_WELL), SPANS_SECONDS[-1])
    start = min(now - span, at)
    return start if began is None or at < began else max(start, min(began, now - SPANS_SECONDS[0] / 4))


def standing(connection: sqlite3.Connection, run_id: str, at: float) -> Standing:
    """Where a run was, for its charts. Raises sqlite3.Error."""
    attempts = tuple(read_attempts(connection, run_id, at))
    lines = past.newest(connection, past.places(connection, run_id, at))
    newest = max((attempt.number for attempt in attempts), default=0)
    steps = [line.step for line in lines if line.attempt == newest and line.step is not None]
    return Standing(at, attempts, max(steps, default=None), past.latest(lines).get("epoch"))


def cut_at(connection: sqlite3.Connection, run_id: str, data: ChartData, at: float) -> ChartData:
    """The charts of a run without what came after a moment. Raises sqlite3.Error."""
    return cut(data, standing(connection, run_id, at))


def past_page(
    connection: sqlite3.Connection,
    reader: RunPageReader,
    curves: PastCurves,
    run: Run,
    progress: tuple[Progress, tuple[str, ...]],
    interest: Interest,
    now: float,
    at: float,
) -> RunPage:
    """The page of ``run``, which is as it was at ``at`` (UTC unix seconds), and so its `past_progress`. Raises
    sqlite3.Error."""
    where = standing(connection, run.run_id, at)
    page = reader.read(connection, run, *progress, interest, at)
    charts = interest.charts
    return replace(
        page,
        log=past_tail(page.log, at, where.attempts[-1].ended_at if where.attempts else None),
        charts=None if charts is None else cut(curves.read(connection, run.run_id, at, now, charts), where),
    )


class PastCurves:
    """The curves of whole runs, to be cut. They are read once, and serve for every moment before they were read."""

    def __init__(self, curves: CurveReader) -> None:
        self._curves = curves
        self._whole: tuple[str, ChartRequest, float, ChartData] | None = None

    def read(
        self, connection: sqlite3.Connection, run_id: str, at: float, now: float, request: ChartRequest
    ) -> ChartData:
        """The charts of the whole run, as they were read at ``at`` or later. Raises sqlite3.Error."""
        known = self._whole
        if known is not None and known[:2] == (run_id, request) and at <= known[2]:
            return known[3]
        data = self._curves.read(connection, run_id, read_attempts(connection, run_id), request)
        self._whole = (run_id, request, now, data)
        return data


def past_tail(tail: LogTail, at: float, ended_at: float | None) -> LogTail:
    """What of a log had been written by a moment. ``ended_at`` is when its attempt had ended, None while it went on;
    both are UTC unix seconds."""
    if not tail.lines or (ended_at is not None and ended_at <= at):
        return tail
    count = lines_by(tail.lines, at)
    if count is None:
        return tail._replace(past_note=TIMELESS)
    if not count and not tail.is_whole:
        return tail._replace(lines=(), levels=b"", problem=TOO_LONG_AGO)
    return tail._replace(lines=tail.lines[:count], levels=tail.levels[:count], past_note=UP_TO_THEN)


def past_progress(connection: sqlite3.Connection, run: Run, at: float) -> tuple[Progress, tuple[str, ...]]:
    """How far ``run``, as it was, had come by ``at`` (UTC unix seconds), and the names of its metrics, harmless. Raises
    sqlite3.Error."""
    reached = past.places(connection, run.run_id, at)
    if not reached:
        return Progress(step=run.attempt_last_step), ()
    lines = past.newest(connection, reached)
    begin = past.first(connection, reached, run.attempt)
    newest = past.latest([*lines, *reversed(begin)])
    ranks = rank_rows(past.ranks(lines, run.attempt))
    step = max((rank.step for rank in ranks.values() if rank.step is not None), default=run.attempt_last_step)
    total = newest.get("total_steps")
    total_steps = int(total) if total is not None and total > 0 else None
    pace = _pace(connection, run, lines, at)
    left = None
    if run.state == "running" and pace and step is not None and total_steps is not None and step < total_steps:
        left = (total_steps - step) / pace
    losses = past.sampled(connection, reached, LOSS, SPARK_POINTS)
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


def _pace(connection: sqlite3.Connection, run: Run, lines: Sequence[PastLine], at: float) -> float | None:
    """Steps per second over the last minute of the attempt."""
    end = _step(lines, run.attempt)
    if end is None:
        return None
    earlier = past.newest(connection, past.places(connection, run.run_id, end[0] - RATE_WINDOW_SECONDS), _FEW_LINES)
    start = _step(earlier, run.attempt) or _step(lines[::-1], run.attempt)
    if start is None or start[0] >= end[0] or start[1] >= end[1]:
        return None
    return (end[1] - start[1]) / (end[0] - start[0])


def _step(lines: Sequence[PastLine], attempt: int) -> tuple[float, int] | None:
    """When which step was done, by the first of the lines that tells it."""
    for line in lines:
        if line.attempt == attempt and line.rank in (None, 0) and line.step is not None and line.at is not None:
            return line.at, line.step
    return None
