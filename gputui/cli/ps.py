"""`gputui ps`."""

from __future__ import annotations

import time

import click

from gputui.charts import units
from gputui.cli.context import Session, print_json, say
from gputui.cli.queue import pause_line
from gputui.cli.table import columns
from gputui.store import json_shapes, metric_intake, queries, queue


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--active", is_flag=True, help="Only runs that are not over.")
@click.pass_obj
def command(session: Session, as_json: bool, active: bool) -> None:
    """List the runs, newest first."""
    connection = session.reader_or_none()
    runs = [] if connection is None else queries.runs(connection, active_only=active)
    if as_json:
        print_json([json_shapes.run_shape(run) for run in runs])
        return
    pause = None if connection is None else queue.pause(connection)
    if pause is not None:
        say(pause_line(pause, time.time()))
    if not runs:
        say(f"no runs yet in {session.workspace.state}; gputui profiles lists what can be launched")
        return
    now = time.time()
    unread = {} if connection is None else metric_intake.without_metrics(connection)
    rows = [
        (
            run.run_id,
            run.state,
            str(run.attempt or "–"),
            str(len(run.gpus)) if run.gpus else "–",
            units.duration((run.ended_at or now) - run.started_at) if run.started_at else "–",
            run.waiting_for or run.told_reason or (f"no metrics: {unread[run.run_id]}" if run.run_id in unread else ""),
        )
        for run in runs
    ]
    for line in columns(("RUN", "STATE", "ATTEMPT", "GPUS", "TIME", ""), rows):
        say(line)
