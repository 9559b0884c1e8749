"""`gputui label`: a person's name, tags and note of a run."""

from __future__ import annotations

from typing import Any

import click

from gputui.runs.labels import checked_note, checked_tag
from gputui.store.runs import Run
from gputui.ui.cli.context import RunName, Session, verb
from gputui.ui.cli.selection import Answer, RunChoice, for_each, is_no_rehearsal, several_runs


@verb("label", changes=is_no_rehearsal, has_json=True)
@click.option("--name", type=RunName(), help="Another name. The run's id stays; every command takes either.")
@click.option("--tag", "added", multiple=True, metavar="TAG", help="Add a tag.")
@click.option("--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag.")
@click.option("--note", metavar="TEXT", help='A note of at most 500 characters; "" removes it.')
@several_runs(tag="--tagged")
def command(
    session: Session,
    name: str | None,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    note: str | None,
    choice: RunChoice,
) -> None:
    """Change the name, tags and note of runs. Without an option: print them."""
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if added:
        changes["add"] = [checked_tag(tag) for tag in added]
    if removed:
        changes["remove"] = [checked_tag(tag) for tag in removed]
    if note is not None:
        changes["note"] = checked_note(note)
    if name is not None:
        choice.single(["--name"])

    def label_one(run: Run) -> Answer:
        labels = _labels(run)
        if changes:
            labels = session.ask("label", run.run_id, **changes)
        parts = [run.run_id, labels["name"], *(f"#{tag}" for tag in labels["tags"])]
        if labels["note"]:
            parts.append(labels["note"])
        return Answer(labels, ["  ".join(parts)])

    if not changes:
        # Nobody needs to confirm what only prints.
        choice = choice._replace(is_sure=True)
    for_each(session, choice, "label", label_one)


def _labels(run: Run) -> dict[str, Any]:
    return {"id": run.run_id, "state": run.state, "name": run.name, "tags": list(run.tags), "note": run.note}
