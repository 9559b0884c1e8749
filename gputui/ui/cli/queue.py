"""`gputui queue`."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import click

from gputui.core import units
from gputui.core.units import iso
from gputui.store import queue
from gputui.ui.cli import completers
from gputui.ui.cli.context import (
    Exit,
    Session,
    fail,
    listing,
    print_json,
    print_result,
    print_table,
    say,
)

PLACES = ("first", "last", "up", "down")


@listing("queue")
def command(session: Session, as_json: bool) -> None:
    """The runs that wait, in the order in which they are served, and what each waits for.

    A higher priority goes first; among equals, whoever waits longer. A run that waits for GPUs
    holds back those behind it from every GPU that it could use itself.
    """
    with closing(session.reader_or_empty()) as connection:
        connection.execute("BEGIN")
        pause = queue.pause(connection)
        entries = queue.entries(connection)
    if as_json:
        shape: dict[str, Any] = {"paused": pause is not None, "paused_at": None, "paused_by": None}
        if pause is not None:
            shape |= {"paused_at": iso(pause.at), "paused_by": pause.actor}
        shape["runs"] = [
            {
                "position": entry.position,
                "id": entry.run_id,
                "priority": entry.priority,
                "queued_at": iso(entry.queued_at),
                "waiting_for": entry.waiting_for,
            }
            for entry in entries
        ]
        print_json(shape)
        return
    now = time.time()
    if pause is not None:
        say(pause_line(pause, now))
    if not entries:
        say("the queue is empty")
        return
    rows = []
    for entry in entries:
        wait = "–"
        if entry.queued_at is not None:
            wait = units.duration(max(0.0, now - entry.queued_at))
        rows.append((str(entry.position), entry.run_id, str(entry.priority), wait, entry.waiting_for or ""))
    print_table(("", "RUN", "PRIORITY", "WAITS", ""), rows)


def pause_line(pause: queue.QueuePause, now: float) -> str:
    """The notice while the queue is paused; ``now`` is UTC unix seconds."""
    since = units.duration(max(0.0, now - pause.at))
    return f"the queue was paused by {pause.actor} {since} ago: nothing new starts; gputui queue resume opens it"


@command.verb("pause", changes=True, has_json=True)
def pause_queue(session: Session, as_json: bool) -> None:
    """Start nothing new; what runs goes on, and is recovered as ever."""
    result = session.ask("queue_pause", None)
    print_result(result, "the queue is paused; gputui queue resume opens it", as_json)


@command.verb("resume", changes=True, has_json=True)
def resume_queue(session: Session, as_json: bool) -> None:
    """Open the queue again."""
    print_result(session.ask("queue_resume", None), "the queue is open", as_json)


@command.verb("move", changes=True, has_json=True)
@click.argument("run", shell_complete=completers.runs)
@click.option("--first", is_flag=True, help="Before all others that wait.")
@click.option("--last", is_flag=True, help="Behind all others that wait.")
@click.option("--up", is_flag=True, help="One place earlier.")
@click.option("--down", is_flag=True, help="One place later.")
@click.option("--priority", type=click.IntRange(-1000, 1000), help="This priority.")
def move(
    session: Session, run: str, first: bool, last: bool, up: bool, down: bool, priority: int | None, as_json: bool
) -> None:
    """Change a waiting run's place by its priority.

    --up and --down may raise the priority of others, too.
    """
    if first + last + up + down + (priority is not None) != 1:
        fail("give one of --first, --last, --up, --down and --priority N", Exit.USAGE)
    place = next((word for word, is_set in zip(PLACES, (first, last, up, down), strict=True) if is_set), None)
    with closing(session.reader()) as connection:
        run_id = session.find_run(connection, run, only=True).run_id
    result = session.ask("queue_move", run_id, place=place, priority=priority)
    print_result(result, f"{run_id} {result['state']}", as_json)
