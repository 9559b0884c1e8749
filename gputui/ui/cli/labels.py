"""`gputui rename`, `tag` and `note`: a person's labels of a run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from gputui.runs.labels import LabelError, checked_note, checked_tag
from gputui.ui.cli.context import EXIT_USAGE, Session, fail, json_option, print_json, say


@click.command("rename")
@click.argument("run")
@click.argument("name")
@json_option
@click.pass_obj
def rename(session: Session, run: str, name: str, as_json: bool) -> None:
    """Give a run another name. Its id stays; every command takes either."""
    _label(session, run, as_json, name=name)


@click.command("tag", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("run")
@click.argument("tags", nargs=-1, metavar="[+TAG | -TAG] ...")
@json_option
@click.pass_obj
def tag(session: Session, run: str, tags: tuple[str, ...], as_json: bool) -> None:
    """Add and remove tags of a run: +TAG or TAG adds one, -TAG removes one. Without tags: print them."""
    if not tags:
        _print(session, run, "tags", as_json)
        return
    try:
        added = [checked_tag(text.removeprefix("+")) for text in tags if not text.startswith("-")]
        removed = [checked_tag(text[1:]) for text in tags if text.startswith("-")]
    except LabelError as error:
        fail(str(error), EXIT_USAGE)
    _label(session, run, as_json, add=added, remove=removed)


@click.command("note")
@click.argument("run")
@click.argument("text", nargs=-1)
@json_option
@click.pass_obj
def note(session: Session, run: str, text: tuple[str, ...], as_json: bool) -> None:
    """Note something about a run. An empty text removes the note; without a text: print it."""
    if not text:
        _print(session, run, "note", as_json)
        return
    try:
        checked = checked_note(" ".join(text))
    except LabelError as error:
        fail(str(error), EXIT_USAGE)
    _label(session, run, as_json, note=checked)


def _label(session: Session, run: str, as_json: bool, **changes: Any) -> None:
    with closing(session.reader()) as connection:
        run_id = session.find_run(connection, run, only=True).run_id
    result = session.command("label", run_id, **changes)
    if as_json:
        print_json(result)
        return
    tags = "".join(f"  #{each}" for each in result["tags"])
    say(f"{run_id}  {result['name']}{tags}" + (f"  {result['note']}" if result["note"] else ""))


def _print(session: Session, run: str, what: str, as_json: bool) -> None:
    with closing(session.reader()) as connection:
        found = session.find_run(connection, run)
    if as_json:
        shape = {"id": found.run_id, "state": found.state, "name": found.name}
        print_json({**shape, "tags": list(found.tags), "note": found.note})
        return
    say(" ".join(f"#{each}" for each in found.tags) if what == "tags" else found.note or "")
