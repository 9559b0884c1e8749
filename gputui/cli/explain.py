"""`gputui explain`."""

from __future__ import annotations

import textwrap
import time
from contextlib import closing

import click

from gputui.cli.context import Session, say
from gputui.store import queries

WIDTH = 100


@click.command("explain")
@click.argument("run")
@click.pass_obj
def command(session: Session, run: str) -> None:
    """What happened to a run, why each decision was taken, and how it stands: in plain sentences."""
    from gputui.recovery.story import tell

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        story = tell(
            view,
            queries.attempts(connection, view.run_id),
            queries.incidents(connection, view.run_id),
            queries.decisions(connection, view.run_id),
            queries.transitions(connection, view.run_id),
            now=time.time(),
        )
    for index, paragraph in enumerate(story):
        if index:
            say("")
        for line in textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False):
            say(line)
