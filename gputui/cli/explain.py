"""`gputui explain`."""

from __future__ import annotations

import textwrap
import time
from contextlib import closing

import click

from gputui.cli.context import Session, say
from gputui.store import queries
from gputui.store.step_times import StepTimes

WIDTH = 100


@click.command("explain")
@click.argument("run")
@click.pass_obj
def command(session: Session, run: str) -> None:
    """What happened to a run, why each decision was taken, and how it stands: in plain sentences."""
    from gputui.recovery.cost import costs
    from gputui.recovery.story import tell

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        attempts = queries.attempts(connection, view.run_id)
        incidents = queries.incidents(connection, view.run_id)
        decisions = queries.decisions(connection, view.run_id)
        story = tell(
            view,
            attempts,
            incidents,
            decisions,
            queries.transitions(connection, view.run_id),
            now=time.time(),
            costs=costs(attempts, incidents, decisions, StepTimes(connection, view.run_id)),
        )
    for index, paragraph in enumerate(story):
        if index:
            say("")
        for line in textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False):
            say(line)
