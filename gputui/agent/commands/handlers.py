"""Answers to commands, and the handlers of short ones: labels, the queue, orphans, alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core import units
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.recovery.watch.engine import MAX_SECONDS
from gputui.recovery.watch.rules import RULES
from gputui.runs.labels import LabelError, checked_labels, checked_tag, store_labels, write_labels
from gputui.runs.repository import transaction
from gputui.store import alerts, commands, queue
from gputui.store.alerts import ANY_SUBJECT, AlertView
from gputui.store.commands import PendingCommand
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


class RefusedError(Exception):
    """The command cannot be carried out; the message says why and what to do. Nothing was changed.
    ``kind`` is for clients that are programs (`gputui.store.commands`)."""

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind


class UnansweredError(Exception):
    """The answer is not ready: the command stays pending, and its handler is called again."""


def answer(supervisor: Supervisor, command: PendingCommand, result: Mapping[str, Any]) -> None:
    """Answer that the command is done, in the transaction of its changes."""
    connection, now = supervisor.context.connection, supervisor.context.now()
    commands.give_answer(connection, command.command_id, "done", now=now, result=dict(result))


def refuse_id_as_name(supervisor: Supervisor, name: str) -> None:
    """Raise RefusedError if a run has the id ``name``: ids and names are one space, so that a
    command acts on the run that a person meant."""
    if get_run(supervisor.context.connection, name) is not None:
        text = f"another run has the id {name!r}; choose another name, as with run --name"
        raise RefusedError(text)


def find_run(supervisor: Supervisor, command: PendingCommand) -> Run:
    """The run that the command names. Raises RefusedError if it does not exist."""
    run = get_run(supervisor.context.connection, command.run_id or "")
    if run is None:
        raise RefusedError(f"no run {command.run_id!r}; gputui ps lists them")
    return run


def label(supervisor: Supervisor, command: PendingCommand) -> None:
    """Set ``name``, ``note`` or ``tags`` (all of them), or ``add`` and ``remove`` tags."""
    context, args, target = supervisor.context, command.args, find_run(supervisor, command)
    note = target.note or ""
    try:
        removed = {checked_tag(str(tag)) for tag in args.get("remove") or ()}
        given = [*args.get("tags", target.tags), *(args.get("add") or ())]
        tags = {str(tag) for tag in given if str(tag).removeprefix("#") not in removed}
        name, text = str(args.get("name", target.name)), str(args.get("note", note) or "")
        labels = checked_labels(name, sorted(tags), text)
    except LabelError as error:
        raise RefusedError(str(error)) from error
    if labels.name not in (target.name, target.run_id):
        refuse_id_as_name(supervisor, labels.name)
    tagged = " ".join(f"#{tag}" for tag in labels.tags)
    events = [
        ("name", labels.name != target.name, f"renamed it from {target.name} to {labels.name}"),
        ("tags", labels.tags != target.tags, f"tagged it {tagged}" if tagged else "untagged it"),
        ("note", labels.note != note, f"noted: {text}" if text else "removed its note"),
    ]
    folder = context.workspace.run_dir(target.run_id)
    try:
        with transaction(context.connection) as connection:
            store_labels(connection, target.run_id, labels)
            for key, is_changed, message in events:
                if is_changed:
                    context.note("labelled", f"{command.actor} {message}", target.run_id, key=key)
            result = {"id": target.run_id, "state": target.state, **labels._asdict()}
            answer(supervisor, command, {**result, "note": labels.note or None})
            # Last, so that the folder has only labels that are stored.
            write_labels(folder, labels)
    except OSError as error:
        raise RefusedError(f"cannot write the labels of {target.run_id}: {error}") from error


COMMAND_CHARACTERS = 200


def orphans_ended(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add an event for each process that ``gputui orphans --kill`` killed or could not kill."""
    processes = command.args.get("processes")
    if not isinstance(processes, list) or not all(isinstance(each, dict) for each in processes):
        raise RefusedError("the command does not name the processes that were ended")
    with transaction(supervisor.context.connection) as connection:
        for process in processes:
            run_id, pid = str(process.get("run_id")), str(process.get("pid"))
            known = get_run(connection, run_id) is not None
            words = clean(redact_text(str(process.get("command", "")))[:COMMAND_CHARACTERS])
            what = f"orphan {pid} of {run_id} ({words})"
            was_killed = bool(process.get("killed"))
            text = f"{command.actor} could not end {what}; not even by SIGKILL"
            supervisor.context.note(
                "orphan_killed" if was_killed else "orphan_unkillable",
                f"{command.actor} ended {what}" if was_killed else text,
                run_id if known else None,
                process.get("attempt") if known else None,
                key=pid,
                severity="info" if was_killed else "error",
            )
        answer(supervisor, command, {"noted": len(processes)})


# --- the queue ----------------------------------------------------------------------------------


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Start no new runs until the queue is resumed; running and recovering runs continue."""
    context, actor = supervisor.context, command.actor
    with transaction(context.connection) as connection:
        if queue.pause(connection) is None:
            queue.set_pause(connection, actor=actor, now=context.now())
            context.note("queue_paused", f"the queue was paused by {actor}", severity="warning")
        answer(supervisor, command, {"paused": True})
    supervisor.needs_schedule = True


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume the queue."""
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is not None:
            queue.clear_pause(connection)
            text = f"the queue was resumed by {command.actor}"
            supervisor.context.note("queue_resumed", text)
        answer(supervisor, command, {"paused": False})
    supervisor.needs_schedule = True


def move(supervisor: Supervisor, command: PendingCommand) -> None:
    """Set a run's ``priority``, or move it to the ``first`` or ``last`` place of the queue, or one
    place ``up`` or ``down``, which may raise the priority of other runs."""
    target = find_run(supervisor, command)
    if target.state not in (RunState.QUEUED, RunState.RECOVERING):
        why = "only a run that waits has a place in the queue"
        raise RefusedError(f"{target.run_id} is {target.state}; {why}")
    with transaction(supervisor.context.connection) as connection:
        priorities = _new_priorities(supervisor, target, command.args)
        for run_id, new in priorities.items():
            queue.set_priority(connection, run_id, new)
            text = f"{command.actor} gave it priority {new}"
            supervisor.context.note("priority_set", text, run_id)
        places = {entry.run_id: entry.position for entry in queue.entries(connection)}
        result = {
            "id": target.run_id,
            "state": target.state,
            "priority": priorities.get(target.run_id, target.priority),
            "position": places.get(target.run_id),
        }
        answer(supervisor, command, result)
    supervisor.needs_schedule = True


def _new_priorities(supervisor: Supervisor, target: Run, args: Mapping[str, object]) -> dict[str, int]:
    """The new priorities by run. Raises RefusedError."""
    place, priority = args.get("place"), args.get("priority")
    if place in ("up", "down"):
        if target.state is not RunState.QUEUED:
            why = "it continues by itself and is not in the queue"
            raise RefusedError(f"{target.run_id} is {target.state}; {why}")
        entries = queue.entries(supervisor.context.connection)
        return queue.moved(entries, target.run_id, -1 if place == "up" else 1)
    waiting = queued_runs(supervisor.context.connection)
    others = [run.priority for run in waiting if run.run_id != target.run_id]
    if place == "first":
        priority = max([target.priority, *(other + 1 for other in others)])
    elif place == "last":
        priority = min([target.priority, *(other - 1 for other in others)])
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RefusedError("say where to: --first, --last or --priority N")
    return {target.run_id: priority}


# --- alerts -------------------------------------------------------------------------------------


def acknowledge(supervisor: Supervisor, command: PendingCommand) -> None:
    """Acknowledge the alerts of ``ids``, or all active ones."""
    now, ids, actor = supervisor.context.now(), command.args.get("ids"), command.actor
    if ids is None:
        lasting = alerts.lasting(supervisor.context.connection)
        wanted = [alert for alert in lasting if alert.acknowledged_at is None]
    elif isinstance(ids, list):
        wanted = [_alert(supervisor, alert_id) for alert_id in ids]
    else:
        raise RefusedError("say which alerts, by their numbers")
    text = "no alert is unacknowledged"
    with transaction(supervisor.context.connection) as connection:
        for alert in wanted:
            alerts.acknowledge(connection, alert.alert_id, now=now, actor=actor)
        if wanted:
            subject = wanted[0].sentence if len(wanted) == 1 else f"{len(wanted)} alerts"
            runs = {alert.run_id for alert in wanted}
            run_id, message = runs.pop(), f"{actor} acknowledged {subject}"
            run_id = None if runs else run_id
            supervisor.context.note("alert_acknowledged", message, run_id, subject="alert")
            text = f"acknowledged: {subject}"
        numbers = [alert.alert_id for alert in wanted]
        answer(supervisor, command, {"ids": numbers, "text": text})


def silence(supervisor: Supervisor, command: PendingCommand) -> None:
    """Silence a rule for ``seconds``: for the subject of the alert ``id``, or with ``rule`` for all
    subjects. 0 ends a silence."""
    seconds: Any = command.args.get("seconds")
    rule: Any = command.args.get("rule")
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAX_SECONDS:
        raise RefusedError("say for how long: seconds from 0 to 30 days")
    if rule is None:
        alert = _alert(supervisor, command.args.get("id"))
        kind, subject_id, whose = alert.subject_kind, alert.subject_id, alert.subject_name
        rule, whose = alert.rule, f"for {whose}"
    elif rule in RULES:
        kind, subject_id, whose = RULES[rule].subject, ANY_SUBJECT, "everywhere"
    else:
        raise RefusedError(f"there is no rule {rule!r}; gputui alerts rules lists them")
    title, actor = RULES[rule].title if rule in RULES else rule, command.actor
    does = f"silenced for {units.duration(seconds)}" if seconds else "no longer silenced"
    text, until = f"{title} {whose} is {does}", supervisor.context.now() + seconds
    with transaction(supervisor.context.connection) as connection:
        count = alerts.silence(connection, rule, kind, subject_id, until=until, actor=actor)
        supervisor.context.note("alert_silenced", f"{text} by {actor}", key=rule, subject="alert")
        result = {"rule": rule, "subject": kind, "subject_id": subject_id, "silenced": count}
        answer(supervisor, command, {**result, "text": text})


def _alert(supervisor: Supervisor, alert_id: Any) -> AlertView:
    is_number = isinstance(alert_id, int) and not isinstance(alert_id, bool)
    alert = alerts.one(supervisor.context.connection, alert_id) if is_number else None
    if alert is None:
        raise RefusedError(f"there is no alert {alert_id}; gputui alerts lists them")
    return alert
