"""`gputui ps`."""

from __future__ import annotations

import sqlite3
import time

import click

from gputui.charts import units
from gputui.cli.context import Session, print_json, say
from gputui.cli.queue import pause_line
from gputui.cli.table import columns
from gputui.store import json_shapes, queue
from gputui.store.metrics import intake
from gputui.store.run_states import RunState
from gputui.store.runs import Run, read_runs
from gputui.tui.data.progress import RunTracker
from gputui.tui.layout.run_words import placement_words, time_left


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--active", is_flag=True, help="Only runs that are not over.")
@click.pass_obj
def command(session: Session, as_json: bool, active: bool) -> None:
    """List the runs, newest first."""
    connection = session.reader_or_none()
    runs = [] if connection is None else read_runs(connection, active_only=active)
    if as_json:
        print_json([json_shapes.run_shape(run) for run in runs])
        return
    pause = None if connection is None else queue.pause(connection)
    if pause is not None:
        say(pause_line(pause, time.time()))
    if connection is None or not runs:
        over = 0 if connection is None else len(read_runs(connection, over_only=True))
        if over:
            say(f"no active run; gputui ps lists {over} that {'is' if over == 1 else 'are'} over")
        else:
            say(f"no runs yet in {session.workspace.state}; gputui profiles lists what can be launched")
        return
    unread = intake.without_metrics(connection)
    rows = [_row(connection, run, unread.get(run.run_id), time.time()) for run in runs]
    for line in columns(("RUN", "STATE", "ATTEMPT", "GPUS", "STEP", "LOSS", "TIME", "LEFT", ""), rows):
        say(line)


def _elsewhere(run: Run, now: float) -> str:
    return "" if run.target is None or run.ended_at is not None else placement_words(run, now)[0]


def _row(connection: sqlite3.Connection, run: Run, unread: str | None, now: float) -> tuple[str, ...]:
    step = None if run.attempt_last_step is None else units.count(run.attempt_last_step)
    loss = left = None
    if run.state in (RunState.RUNNING, RunState.STOPPING):
        tracker = RunTracker(run.run_id)
        tracker.read(connection, run.attempt)
        progress = tracker.progress(run)
        if progress.step is not None:
            total = "" if progress.total_steps is None else f"/{units.count(progress.total_steps)}"
            step = units.count(progress.step) + total
        loss = None if progress.loss is None else units.metric_value(progress.loss)
        left = time_left(progress).removesuffix(" left")
    return (
        run.run_id,
        run.state,
        str(run.attempt or "–"),
        str(len(run.gpus)) if run.gpus else "–",
        step or "–",
        loss or "–",
        units.duration((run.ended_at or now) - run.started_at) if run.started_at else "–",
        left or "–",
        run.waiting_for or run.told_reason or _elsewhere(run, now) or (f"no metrics: {unread}" if unread else ""),
    )
