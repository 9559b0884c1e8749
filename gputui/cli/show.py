"""`gputui show`."""

from __future__ import annotations

import time
from contextlib import closing

import click

from gputui.charts import units
from gputui.cli.context import Session, print_json, say
from gputui.cli.table import columns
from gputui.store import json_shapes, queries


@click.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str, as_json: bool) -> None:
    """One run: its parameters, its attempts, and how each ended."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        attempts = queries.attempts(connection, view.run_id)
        incidents = queries.incidents(connection, view.run_id)
        decisions = queries.decisions(connection, view.run_id)
    if as_json:
        print_json(json_shapes.show_shape(view, attempts, incidents, decisions))
        return
    now = time.time()
    say(f"{view.run_id}  {view.state}" + (f"  ({view.reason})" if view.reason else ""))
    say(f"profile     {view.profile}")
    say("parameters  " + "  ".join(f"{name}={value}" for name, value in view.params.items()))
    if view.waiting_for:
        say(f"waiting     {view.waiting_for}")
    causes = {incident.attempt: incident.summary for incident in incidents}
    rows = [
        (
            str(attempt.number),
            attempt.state,
            units.duration((attempt.ended_at or now) - attempt.started_at) if attempt.started_at else "–",
            steps(attempt.first_step, attempt.last_step),
            causes.get(attempt.number, ""),
        )
        for attempt in attempts
    ]
    if rows:
        say("")
        for line in columns(("ATTEMPT", "STATE", "TIME", "STEPS", ""), rows):
            say(line)


def steps(first: int | None, last: int | None) -> str:
    return "–" if first is None or last is None else f"{units.count(first)}–{units.count(last)}"
