"""Answers to commands, and the handlers of short ones: labels, the queue, orphans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.runs.labels import LabelError, Labels, checked_labels, checked_tag, store_labels, write_labels
from gputui.runs.repository import transaction
from gputui.store import commands, queue
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


class RefusedError(Exception):
    """The command cannot be carried out; the message says why and what to do. Nothing was changed. ``kind`` is for
    clients that are programs (`gputui.store.commands`)."""

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind


class UnansweredError(Exception):
    """The answer is not ready: the command stays pending, and its handler is called again."""


def answer(supervisor: Supervisor, command: PendingCommand, result: Mapping[str, Any]) -> None:
    """Answer that the command is done, in the transaction of its changes."""
    now = supervisor.context.now()
    commands.give_answer(supervisor.context.connection, command.command_id, "done", now=now, result=dict(result))


def refuse_id_as_name(supervisor: Supervisor, name: str) -> None:
    """Raise RefusedError if a run has the id ``name``: ids and names are one space, so that a command acts on the run
    that a person meant."""
    if get_run(supervisor.context.connection, name) is not None:
        raise RefusedError(f"another run has the id {name!r}; choose another name, as with run --name")


def find_run(supervisor: Supervisor, command: PendingCommand) -> Run:
    """The run that the command names. Raises RefusedError if it does not exist."""
    run = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
    if run is None:
        raise RefusedError(f"no run {command.run_id!r}; gputui ps lists them")
    return run


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


COMMAND_CHARACTERS = 200


def orphans_ended(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add an event for each process that ``gputui orphans --kill`` killed or could not kill."""
    processes = command.args.get("processes")
    if not isinstance(processes, list) or not all(isinstance(process, dict) for process in processes):
        raise RefusedError("the command does not name the processes that were ended")
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        for process in processes:
            run_id = str(process.get("run_id"))
            known = get_run(connection, run_id) is not None
            add_event(
                connection,
                "orphan_killed" if process.get("killed") else "orphan_unkillable",
                sentence(process, run_id, command.actor),
                now=now,
                key=str(process.get("pid")),
                severity="info" if process.get("killed") else "error",
                run_id=run_id if known else None,
                attempt=process.get("attempt") if known else None,
            )
        answer(supervisor, command, {"noted": len(processes)})


def sentence(process: dict[str, Any], run_id: str, actor: str) -> str:
    """The event's text, redacted and without terminal control characters."""
    words = clean(redact_text(str(process.get("command", "")))[:COMMAND_CHARACTERS])
    what = f"orphan {process.get('pid')} of {run_id} ({words})"
    return f"{actor} ended {what}" if process.get("killed") else f"{actor} could not end {what}; not even by SIGKILL"


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Start no new runs until the queue is resumed; running and recovering runs continue."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is None:
            queue.set_pause(connection, actor=command.actor, now=now)
            add_event(
                connection, "queue_paused", f"the queue was paused by {command.actor}", now=now, severity="warning"
            )
        answer(supervisor, command, {"paused": True})
    supervisor.needs_schedule = True


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume the queue."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is not None:
            queue.clear_pause(connection)
            add_event(connection, "queue_resumed", f"the queue was resumed by {command.actor}", now=now)
        answer(supervisor, command, {"paused": False})
    supervisor.needs_schedule = True


def move(supervisor: Supervisor, command: PendingCommand) -> None:
    """Set a run's ``priority``, or move it to the ``first`` or ``last`` place of the queue, or one place ``up`` or
    ``down``, which may raise the priority of other runs."""
    waiting = queued_runs(supervisor.context.connection)
    target = next((run for run in waiting if run.run_id == command.run_id), None)
    if target is None:
        wanted_run = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
        if wanted_run is None:
            raise RefusedError(f"no run {command.run_id!r}; gputui queue lists those that wait")
        if wanted_run.state is not RunState.RECOVERING:
            raise RefusedError(
                f"{wanted_run.run_id} is {wanted_run.state}; only a run that waits has a place in the queue"
            )
        target = wanted_run
    priorities = new_priorities(supervisor, target, waiting, command.args)
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        for run_id, new in priorities.items():
            queue.set_priority(connection, run_id, new)
            add_event(connection, "priority_set", f"{command.actor} gave it priority {new}", now=now, run_id=run_id)
        priority = priorities.get(target.run_id, target.priority)
        position = next((e.position for e in queue.entries(connection) if e.run_id == target.run_id), None)
        result = {"id": target.run_id, "state": target.state, "priority": priority, "position": position}
        answer(supervisor, command, result)
    supervisor.needs_schedule = True


def new_priorities(supervisor: Supervisor, target: Run, waiting: list[Run], args: dict[str, object]) -> dict[str, int]:
    """The new priorities by run. Raises RefusedError."""
    by = {"up": -1, "down": 1}.get(str(args.get("place")))
    if by is None:
        return {target.run_id: new_priority(target, waiting, args)}
    if target.state is not RunState.QUEUED:
        raise RefusedError(f"{target.run_id} is {target.state}; it continues by itself and is not in the queue")
    return queue.moved(queue.entries(supervisor.context.connection), target.run_id, by)


def new_priority(target: Run, waiting: list[Run], args: dict[str, object]) -> int:
    """The new priority of ``target``. Raises RefusedError."""
    others = [run for run in waiting if run.run_id != target.run_id]
    place = args.get("place")
    if place == "first":
        return max([target.priority, *(run.priority + 1 for run in others)])
    if place == "last":
        return min([target.priority, *(run.priority - 1 for run in others)])
    priority = args.get("priority")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RefusedError("say where to: --first, --last or --priority N")
    return priority
