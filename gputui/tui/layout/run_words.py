"""What there is to say about a run, as styled words."""

from __future__ import annotations

from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import ago, duration
from gputui.store.runs import Run
from gputui.tui.data.snapshot import Progress, RunRow
from gputui.tui.layout.words import dated_clock

SILENT_STEPS = 3
"""A run that makes no step for so many times its usual one is shown as silent."""

SILENT_SECONDS = 5.0
"""Less than this is a checkpoint or a validation, and would only flicker."""


def outlook(row: RunRow, now: float) -> Span:
    """What there is to say about a run in a few words: time left, what it waits for, why it ended."""
    run, progress = row.run, row.progress
    if run.state == "queued":
        if run.not_before is not None and run.not_before > now:
            return (f"again in {duration(run.not_before - now)}", "text")
        return (clean(run.waiting_for) if run.waiting_for else "next", "text")
    if run.state.is_over:
        ended = "" if run.ended_at is None else ago(now - run.ended_at)
        reason = clean(run.told_reason or "")
        if run.state == "succeeded" or not reason:
            took = _took(row)
            return (" · ".join(part for part in (ended, took) if part), "dim")
        return (f"{ended} · {reason}" if ended else reason, "text")
    if run.placement is not None and not run.placement.is_seen_running(now):
        return placement_words(run, now)
    if run.waiting_for and run.state != "stopping":
        return (clean(run.waiting_for), "text")
    if run.state == "recovering":
        return (clean(run.reason or "finding out what happened"), "text")
    if run.state == "stopping":
        return ("saving a checkpoint, then exiting", "text")
    if run.state == "starting":
        began_at = run.attempt_started_at
        return ("first step pending" if began_at is None else f"starting for {_since(now - began_at)}", "dim")
    silent = silent_seconds(row, now)
    if silent:
        pace = progress.steps_per_second
        usual = f" (usually {duration(1 / pace)})" if pace else ""
        return (f"no step for {_since(silent)}{usual}", "warn")
    return (time_left(progress), "text")


def placement_words(run: Run, now: float) -> Span:
    """Where a run is that does not run here: ``lab: pending (Priority), expected 14:30``, ``lab: running on node1, 3 h
    of its limit left``, ``lab: unknown since 14:02 (…)``. Not reached is not failed."""
    where, placement = clean(run.target or ""), run.placement
    if placement is None:
        return (where, "text")
    if placement.is_unknown(now) and placement.contact_at is not None:
        why = f" ({clean(placement.problem)})" if placement.problem else ""
        return (f"{where}: unknown since {dated_clock(placement.contact_at, now)}{why}", "warn")
    words = [f"{where}: {placement.state}"]
    if placement.nodes:
        words[0] += f" on {clean(', '.join(placement.nodes))}"
    if placement.reason:
        words[0] += f" ({clean(placement.reason)})"
    if placement.expected_start is not None and placement.expected_start > now and placement.state != "running":
        words.append(f"expected {dated_clock(placement.expected_start, now)}")
    if placement.limit_at is not None and placement.state == "running":
        words.append(f"{_since(placement.limit_at - now)} of its limit left")
    if placement.restarts:
        words.append(f"requeued {placement.restarts} ×")
    if placement.problem:
        words.append(clean(placement.problem))
    return (", ".join(words), "warn" if placement.problem else "text")


def silent_seconds(row: RunRow, now: float) -> float | None:
    """For how long a training run has made no step, where that is more than `SILENT_STEPS` of its usual steps and
    `SILENT_SECONDS`; None where it goes on as usual or its steps have no time."""
    newest, pace = row.progress.newest_at, row.progress.steps_per_second
    if row.run.state != "running" or newest is None or not pace:
        return None
    silent = now - newest
    return silent if silent > max(SILENT_SECONDS, SILENT_STEPS / pace) else None


def _since(seconds: float) -> str:
    """Whole seconds, whole minutes from two minutes on: it must not flicker."""
    seconds = max(0.0, seconds)
    return duration(seconds // 1 if seconds < 120 else seconds // 60 * 60)


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
