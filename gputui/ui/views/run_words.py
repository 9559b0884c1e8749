"""A run in styled words: its status line, placement, stop and start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gputui.core.text import clean
from gputui.core.units import age, ago, bytes_text, count, count_of, duration
from gputui.metrics.draw.parts import Span
from gputui.metrics.progress import Progress
from gputui.runs.stored_spec import known_spec
from gputui.store.runs import Run, StopRequest, is_renamed
from gputui.ui.views.snapshot import RunRow
from gputui.ui.views.words import Sign, dated_clock, run_state_text, sign_of

SILENT_STEPS = 3
"""A run without a step for this many times its usual step time is shown as silent."""

SILENT_SECONDS = 5.0
"""Shorter silences are checkpoints or validations, and would flicker."""

SLOW_END_SECONDS = 120.0
"""A last checkpoint, test and exit that take longer than this deserve a look."""

RUN_COLOURS = 6

MOST_NAMED = 16
"""Runs that a question names; more would not fit into a small terminal."""

MOST_OWNERS = 3
"""Runs that are named beside one of several tags."""


def run_style(run: Run) -> str:
    """The style of a run's name and curves."""
    return f"series.{run_colour(run)}"


def run_colour(run: Run) -> int:
    """The number of a run's colour; runs launched one after the other differ."""
    return (run.sequence - 1) % RUN_COLOURS


def runs_question(runs: Sequence[Run], left_out: Mapping[str, str], effect: str, *, with_sizes: bool = False) -> str:
    """The question about several runs: ``a-1 (2.1 GB), a-2. Together at least 2.1 GB. … Left out: b-1 (still runs).``

    Args:
        runs: those that would be acted on.
        left_out: why other marked runs are not among them, by their ids.
        effect: a sentence on what would be done.
        with_sizes: whether the question names the sizes of the runs' folders.
    """
    size_of = {run.run_id: f" ({bytes_text(run.size_bytes)})" for run in runs if with_sizes}
    names = [f"{run.run_id}{size_of.get(run.run_id, '')}" for run in runs]
    parts = [f"{_joined(names)}.", effect]
    sizes = [run.size_bytes for run in runs if run.size_bytes is not None]
    if with_sizes and sizes:
        total = bytes_text(sum(sizes))
        if len(sizes) < len(runs):
            total = f"at least {total}"
        parts.insert(1, f"Together {total}.")
    if left_out:
        parts.append(f"Left out: {_joined([f'{run_id} ({why})' for run_id, why in left_out.items()])}.")
    return clean(" ".join(filter(None, parts)))


def _joined(names: Sequence[str]) -> str:
    """``a, b and 3 more``: the first `MOST_NAMED` names."""
    more = len(names) - MOST_NAMED
    if more <= 0:
        return ", ".join(names)
    return ", ".join([*names[:MOST_NAMED], f"and {more} more"])


def state_sign(row: RunRow, now: float) -> Sign:
    """The state of a run with its restarts; of one that makes no step, for how long that is so."""
    silent = silent_seconds(row, now)
    if silent is not None and not _has_made_all_steps(row.progress):
        return Sign("▲", f"no step {age(silent)}", "warn")
    return sign_of(row.run)._replace(word=run_state_text(row.run))


def status_line(row: RunRow, now: float) -> Span:
    """``1 h 42 left``, ``2 h ago · out of memory``: a run beside its `state_sign`, with what it waits for or how it
    ended."""
    run = row.run
    progress = row.progress
    if run.state == "queued":
        if run.not_before is not None and run.not_before > now:
            return (f"again in {duration(math.ceil(run.not_before - now))}", "text")
        return (clean(run.waiting_for or "next"), "text")
    if run.state.is_over:
        return _end_line(run, now)
    return activity(row, now, is_beside_sign=True) or (time_left(progress), "text")


def _end_line(run: Run, now: float) -> Span:
    """``2 h ago · took 9 h 10``, or ``2 h ago · out of memory``: when a run ended, and how."""
    parts = []
    if run.ended_at is not None:
        parts.append(ago(now - run.ended_at))
    reason = clean(run.reported_reason or "")
    if run.state != "succeeded" and reason:
        return (" · ".join([*parts, reason]), "text")
    style = "dim"
    if run.unsound_since is not None:
        parts.append(f"loss not finite since step {count(run.unsound_since)}")
        style = "warn"
    if run.ended_seconds is not None:
        parts.append(f"took {duration(run.ended_seconds)}")
    return (" · ".join(parts), style)


def activity(row: RunRow, now: float, *, is_beside_sign: bool = False) -> Span | None:
    """What a run with an attempt does or waits for; None if it makes steps as usual, or what it does is unknown.
    ``is_beside_sign`` leaves out what its `state_sign` tells."""
    run = row.run
    progress = row.progress
    if run.state == "queued" or run.state.is_over:
        return None
    if run.has_exited:
        doing = clean(run.waiting_for or "has ended; its logs and checkpoints are being read")
        return (f"attempt {run.attempt} {doing}", "text")
    if run.state == "stopping":
        return stop_words(row, now)
    if run.placement is not None and not run.placement.is_seen_running(now):
        return placement_words(run, now)
    if run.waiting_for:
        return (clean(run.waiting_for), "text")
    if run.state == "recovering":
        return (clean(run.reason or "finding out what happened"), "text")
    if run.state == "starting":
        return (start_words(run, now), "dim")
    silent = silent_seconds(row, now)
    if silent and _has_made_all_steps(progress):
        style = "text" if silent < SLOW_END_SECONDS else "warn"
        return (f"finishing for {_since(silent)}", style)
    if silent:
        usual = f"usually {duration(_usual_seconds(progress))}"
        if is_beside_sign:
            return (usual, "warn")
        return (f"no step for {_since(silent)} ({usual})", "warn")
    if awaits_step(row):
        return (_unstepped_words(run, now), "text")
    return None


def awaits_step(row: RunRow) -> bool:
    """Return whether a running attempt has not made its first step, of a run whose steps can be known."""
    if row.run.shown_state != "running" or row.progress.step is not None:
        return False
    spec = known_spec(row.run)
    return spec is not None and bool(spec.metrics)


def _unstepped_words(run: Run, now: float) -> str:
    """``from step 40, no step yet, 20 s (last time 14 s)``, with a reason once that is unusual."""
    text = f"no step yet, {start_words(run, now)}"
    if run.attempt_resumed_step is not None:
        text = f"from step {count(run.attempt_resumed_step)}, {text}"
    began_at = run.attempt_started_at
    spec = known_spec(run)
    if began_at is not None and now - began_at < (run.usual_start_seconds or 0.0):
        return text
    if run.no_metrics is not None:
        return f"{text} · {clean(run.no_metrics)}"
    if spec is not None and all(source.kind == "hf" for source in spec.metrics):
        return f"{text} · its metrics come with its first checkpoint"
    return text


def tag_words(run: Run) -> str:
    """``#baseline #lr-sweep``; empty without tags."""
    return " ".join(f"#{clean(tag)}" for tag in run.tags)


def shared_tag_words(runs: Sequence[Run]) -> str:
    """``base, large (5 of 8), small (a-1, a-2)``: the tags of several runs, each with its runs unless all have it."""
    parts = []
    for tag in sorted({tag for run in runs for tag in run.tags}):
        owners = [run.run_id for run in runs if tag in run.tags]
        if len(owners) == len(runs):
            parts.append(tag)
        elif len(owners) > MOST_OWNERS:
            parts.append(f"{tag} ({len(owners)} of {len(runs)})")
        else:
            parts.append(f"{tag} ({', '.join(owners)})")
    return clean(", ".join(parts))


def run_title(run: Run) -> str:
    """The name that a person gave the run, else its id."""
    return title_of(run.run_id, run.name)


def title_of(run_id: str, name: str | None) -> str:
    """`run_title` of a run's id and name."""
    if name is not None and is_renamed(run_id, name):
        return clean(name)
    return clean(run_id)


def start_words(run: Run, now: float) -> str:
    """``14 s (last time 11 s)``: for how long its attempt has had no step, and the profile's last one had none."""
    began_at = run.attempt_started_at
    usual = run.usual_start_seconds
    text = "launching" if began_at is None else _since(now - began_at)
    if usual is None:
        return text
    return f"{text} (last time {_since(usual)})"


def stop_words(row: RunRow, now: float) -> Span:
    """``8 s: waits for its exit · 23 steps unsaved · killed in 18 s``."""
    stop = row.run.stop
    if stop is None:
        return ("waits for its exit", "text")
    problem = None
    if row.run.placement is not None and row.run.placement.problem:
        problem = clean(row.run.placement.problem)
    if stop.is_kill:
        text = f"being killed for {_since(now - stop.since)}"
        if problem is not None:
            text += f" · {problem} · given up after a minute of that"
        return (text, "warn")
    parts = [f"{_since(now - stop.since)}: waits for its exit (it may save a checkpoint)"]
    sees_checkpoints = stop.saved_step is not None or row.run.target is None
    if sees_checkpoints and (unsaved := unsaved_words(row.progress.step, stop)):
        parts.append(unsaved)
    style = "text"
    silent = _unusual_silence(row, now)
    if silent is not None:
        parts.append(f"no step for {_since(silent)}")
        style = "warn"
    if stop.grace_seconds is not None:
        remaining = stop.since + stop.grace_seconds - now
        text = f"killed in {_since(remaining)}" if remaining > 0 else "being killed"
        parts.append(text)
    if problem is not None:
        parts.append(f"{problem} · gputui stop --now gives {clean(row.run.target or 'it')} up after a minute")
        style = "warn"
    return (" · ".join(parts), style)


def unsaved_words(step: int | None, stop: StopRequest) -> str:
    """``23 steps unsaved``: what is lost if nothing more is saved; empty if unknown or nothing."""
    if step is None or step <= (stop.saved_step or 0):
        return ""
    return f"{count_of(step - (stop.saved_step or 0), 'step')} unsaved"


def waiting_words(run: Run, now: float) -> str:
    """What an active run waits for in a queue, here or on its target; "" if it waits for nothing."""
    if run.state in ("queued", "recovering"):
        return clean(run.waiting_for or run.reason or "in the queue")
    if run.state in ("starting", "running") and run.placement is not None and run.placement.is_waiting:
        return placement_words(run, now)[0]
    return ""


def placement_words(run: Run, now: float) -> Span:
    """``lab: pending (Priority), expected 14:30``, or ``lab: unknown since 14:02 (…)``."""
    target = clean(run.target or "")
    placement = run.placement
    if placement is None:
        return (target, "text")
    if placement.is_unknown(now) and placement.contact_at is not None:
        text = f"{target}: unknown since {dated_clock(placement.contact_at, now)}"
        if placement.problem:
            text += f" ({clean(placement.problem)})"
        return (text, "warn")
    state: str = placement.state
    if run.has_ended_there:
        state = "its end is being examined, its job ended"
    text = f"{target}: {state}"
    if placement.nodes:
        text += f" on {clean(', '.join(placement.nodes))}"
    if placement.reason:
        text += f" ({clean(placement.reason)})"
    if placement.expected_start is not None and placement.expected_start > now and placement.state != "running":
        text += f", expected {dated_clock(placement.expected_start, now)}"
    if placement.limit_at is not None and placement.state == "running":
        text += f", {_since(placement.limit_at - now)} of its limit left"
    if placement.restarts:
        text += f", requeued {placement.restarts} ×"
    if placement.problem:
        return (f"{text}, {clean(placement.problem)}", "warn")
    return (text, "text")


def silent_seconds(row: RunRow, now: float) -> float | None:
    """Seconds without a step, if that is unusually long for a training run; else None."""
    if row.run.shown_state == "running":
        return _unusual_silence(row, now)
    return None


def _has_made_all_steps(progress: Progress) -> bool:
    return progress.total_steps is not None and (progress.step or 0) >= progress.total_steps


def _unusual_silence(row: RunRow, now: float) -> float | None:
    """Seconds since the newest line of metrics, if it is unusually long ago; else None."""
    newest = row.progress.newest_at
    usual = _usual_seconds(row.progress)
    if newest is None or usual is None:
        return None
    silent = row.run.seen_until(now) - newest
    if silent > max(SILENT_SECONDS, SILENT_STEPS * usual):
        return silent
    return None


def _usual_seconds(progress: Progress) -> float | None:
    """The usual time between reported steps; None if unknown."""
    if not progress.steps_per_second:
        return None
    return max(1 / progress.steps_per_second, progress.report_seconds or 0.0)


def _since(seconds: float) -> str:
    """A duration in whole seconds, from two minutes on in minutes, so that it does not flicker."""
    step = 1 if seconds < 120 else 60
    return duration(max(0.0, seconds) // step * step)


def time_left(progress: Progress) -> str:
    """``1 h 42 left``, rounded so that it does not change with every step; empty if unknown."""
    seconds = progress.seconds_left
    if seconds is None:
        return ""
    if seconds >= 120:
        seconds = round(seconds / 60) * 60
    elif seconds >= 30:
        seconds = round(seconds / 10) * 10
    return f"{duration(seconds)} left"
