"""The command that changes a run's name, tags or note."""

from __future__ import annotations

from gputui.agent.commands.answers import RefusedError, answer, find_run, refuse_id_as_name
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.runs.labels import LabelError, Labels, checked_labels, checked_tag, store_labels, write_labels
from gputui.runs.repository import transaction
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event
from gputui.store.runs import Run


def label(supervisor: Supervisor, command: PendingCommand) -> None:
    """Set ``name``, ``note`` or ``tags`` (all of them), or ``add`` and ``remove`` tags."""
    context = supervisor.context
    target = find_run(supervisor, command)
    labels = _labels_asked_for(target, command)
    if labels.name not in (target.name, target.run_id):
        refuse_id_as_name(supervisor, labels.name)
    now = context.now()
    try:
        with transaction(context.connection) as connection:
            store_labels(connection, target.run_id, labels)
            for key, message in _events_of_changes(target, labels):
                add_event(connection, "labelled", f"{command.actor} {message}", now=now, key=key, run_id=target.run_id)
            result = {"id": target.run_id, "state": target.state, **labels._asdict(), "note": labels.note or None}
            answer(supervisor, command, result)
            # Last, so that the folder has only labels that are stored.
            write_labels(context.workspace.run_dir(target.run_id), labels)
    except OSError as error:
        raise RefusedError(f"cannot write the labels of {target.run_id}: {error}") from error


def _labels_asked_for(target: Run, command: PendingCommand) -> Labels:
    args = command.args
    try:
        removed = {checked_tag(str(tag)) for tag in args.get("remove") or ()}
        tags = {str(tag) for tag in args.get("tags", target.tags)} | {str(tag) for tag in args.get("add") or ()}
        kept = [tag for tag in tags if tag.removeprefix("#") not in removed]
        return checked_labels(str(args.get("name", target.name)), kept, str(args.get("note", target.note) or ""))
    except LabelError as error:
        raise RefusedError(str(error)) from error


def _events_of_changes(target: Run, labels: Labels) -> list[tuple[str, str]]:
    """Key and text of an event for each change."""
    found = []
    if labels.name != target.name:
        found.append(("name", f"renamed it from {target.name} to {labels.name}"))
    if labels.tags != target.tags:
        found.append(
            ("tags", f"tagged it {' '.join('#' + tag for tag in labels.tags)}" if labels.tags else "untagged it")
        )
    if labels.note != (target.note or ""):
        found.append(("note", f"noted: {labels.note}" if labels.note else "removed its note"))
    return found
