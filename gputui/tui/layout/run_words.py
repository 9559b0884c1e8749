"""What there is to say about a run, as styled words."""

from __future__ import annotations

from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import ago, duration
from gputui.tui.data.snapshot import Progress, RunRow
from gputui.tui.layout.words import OVER


def outlook(row: RunRow, now: float) -> Span:
    """What there is to say about a run in a few words: time left, what it waits for, why it ended."""
    run, progress = row.run, row.progress
    if run.state == "queued":
        if run.not_before is not None and run.not_before > now:
            return (f"again in {duration(run.not_before - now)}", "text")
        return (clean(run.waiting_for) if run.waiting_for else "next", "text")
    if run.state in OVER:
        ended = "" if run.ended_at is None else ago(now - run.ended_at)
        reason = clean(run.told_reason or "")
        if run.state == "succeeded" or not reason:
            took = _took(row)
            return (" · ".join(part for part in (ended, took) if part), "dim")
        return (f"{ended} · {reason}" if ended else reason, "text")
    if run.waiting_for and run.state != "stopping":
        return (clean(run.waiting_for), "text")
    if run.state == "recovering":
        return (clean(run.reason or "finding out what happened"), "text")
    if run.state == "stopping":
        return ("checkpointing, then leaving", "text")
    left = time_left(progress)
    return (left, "text") if left else ("" if run.state == "running" else "waiting for its first step", "dim")


def time_left(progress: Progress) -> str:
    """``1 h 42 left``, rounded so that it does not change with every step; empty when it cannot be told."""
    seconds = progress.seconds_left
    if seconds is None:
        return ""
    if seconds >= 120:
        seconds = round(seconds / 60) * 60
    elif seconds >= 30:
        seconds = round(seconds / 10) * 10
    return f"{duration(seconds)} left"


def _took(row: RunRow) -> str:
    run = row.run
    if run.started_at is None or run.ended_at is None:
        return ""
    return f"took {duration(run.ended_at - run.started_at)}"
