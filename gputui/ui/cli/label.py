"""`gputui label`: a person's name, tags and note of a run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from gputui.runs.labels import LabelError, checked_note, checked_tag
from gputui.ui.cli.context import Exit, Session, fail, json_option, print_result, verb


@verb("label", changes=True)
@click.argument("run")
@click.option("--name", help="Another name. The run's id stays; every command takes either.")
@click.option("--tag", "added", multiple=True, metavar="TAG", help="Add a tag.")
@click.option("--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag.")
@click.option("--note", metavar="TEXT", help='A note of at most 500 characters; "" removes it.')
@json_option
@click.pass_obj
def command(
    session: Session,
    run: str,
    name: str | None,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    note: str | None,
    as_json: bool,
) -> None:
    """Change the name, tags and note of a run. Without an option: print them."""
    try:
        given: dict[str, Any] = {
            "name": name,
            "add": [checked_tag(tag) for tag in added] or None,
            "remove": [checked_tag(tag) for tag in removed] or None,
            "note": None if note is None else checked_note(note),
        }
    except LabelError as error:
        fail(str(error), Exit.USAGE)
    changes = {key: value for key, value in given.items() if value is not None}
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run, only=True)
    labels: dict[str, Any] = {"id": view.run_id, "state": view.state, "name": view.name, "tags": list(view.tags)}
    labels["note"] = view.note
    if changes:
        labels = session.command("label", view.run_id, **changes)
    tags = "".join(f"  #{tag}" for tag in labels["tags"])
    note = f"  {labels['note']}" if labels["note"] else ""
    print_result(labels, f"{view.run_id}  {labels['name']}{tags}{note}", as_json)
