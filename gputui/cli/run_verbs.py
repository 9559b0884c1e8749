"""What the verbs that act on one run have in common."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from gputui.cli.context import Session, print_json, say


def act(session: Session, verb: str, wanted: str, as_json: bool, **args: Any) -> None:
    """Resolve the run, send the command, print what became of it."""
    with closing(session.reader()) as connection:
        run_id = session.find_run(connection, wanted).run_id
    result = session.command(verb, run_id, **args)
    if as_json:
        print_json(result)
    else:
        say(f"{result.get('id', run_id)} {result.get('state', '')}")
