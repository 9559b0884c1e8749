"""Answers to commands, and the handlers of short ones: labels, orphans, the queue, alerts, studies."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core import units
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.recovery.watch.engine import MAX_SECONDS
from gputui.recovery.watch.rules import RULES
from gputui.runs import repository
from gputui.runs.labels import LabelError, checked_labels, checked_tag, store_labels, write_labels
from gputui.runs.submission import read_ticket
from gputui.store import alerts, commands, queue
from gputui.store.alerts import ANY_SUBJECT, AlertView
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs
from gputui.store.studies import StudyRecord, StudyState, TrialRecord, TrialState, Wish, get_study, read_trials
from gputui.studies import rows
from gputui.studies.analysis import best_trial
from gputui.studies.spec import StudySpec, study_spec


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
        with repository.transaction(context.connection) as connection:
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
    with repository.transaction(supervisor.context.connection) as connection:
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


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Start no new runs until the queue is resumed; running and recovering runs continue."""
    context, actor = supervisor.context, command.actor
    with repository.transaction(context.connection) as connection:
        if queue.pause(connection) is None:
            queue.set_pause(connection, actor=actor, now=context.now())
            context.note("queue_paused", f"the queue was paused by {actor}", severity="warning")
        answer(supervisor, command, {"paused": True})
    supervisor.needs_schedule = True


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume the queue."""
    with repository.transaction(supervisor.context.connection) as connection:
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
    with repository.transaction(supervisor.context.connection) as connection:
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
    with repository.transaction(supervisor.context.connection) as connection:
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
    with repository.transaction(supervisor.context.connection) as connection:
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


def begin_study(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin a study. Like a run's, its private specification is a ticket. Raises SpecError."""
    context, connection = supervisor.context, supervisor.context.connection
    ticket, _ = read_ticket(context.workspace, str(command.args.get("ticket") or ""))
    spec = msgspec.convert(command.args["spec"], StudySpec)
    home, name = context.workspace.studies, repository.fitting_name(spec.name)
    try:
        home.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        used_ids = {path.name for path in home.iterdir()}
        used_ids |= {row[0] for row in connection.execute("SELECT study_id FROM studies")}
        ids = (f"{name}-{number}" for number in count(1))
        study_id = next(each for each in ids if each not in used_ids)
        folder = home / study_id
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        (folder / rows.SPEC_FILE).hardlink_to(ticket)
    except OSError as error:
        text = f"cannot make the study's folder: {error}; free some disk space"
        raise RefusedError(text) from error
    source, now = str(command.args.get("source") or ""), context.now()
    try:
        with repository.transaction(connection):
            rows.begin_study(connection, study_id, spec, source=source, now=now, actor=command.actor)
            answer(supervisor, command, {"id": study_id, "state": StudyState.RUNNING})
    except (sqlite3.Error, WithdrawnError):
        shutil.rmtree(folder)
        raise
    ticket.unlink(missing_ok=True)


def pause_study(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin no more trials; running ones continue."""
    with repository.transaction(supervisor.context.connection):
        study = _find_study(supervisor, command)
        if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
            raise RefusedError(f"{study.study_id} is {study.state}")
        state = _move_study(supervisor, command, study, StudyState.PAUSED, "paused")
        answer(supervisor, command, {"id": study.study_id, "state": state})


def resume_study(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume a paused or stopped study with the trials that were stopped with it; failed launches
    are repeated."""
    with repository.transaction(supervisor.context.connection) as connection:
        study = _find_open(supervisor, command)
        study_id = study.study_id
        if study.state.is_over and study.state is not StudyState.STOPPED:
            raise RefusedError(f"{study_id} is {study.state}; gputui study extend gives it more")
        if study.state is StudyState.STOPPED:
            rows.enqueue_stopped(connection, study_id)
        connection.execute(
            "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL", (study_id,)
        )
        state = _move_study(supervisor, command, study, StudyState.RUNNING, "resumed")
        answer(supervisor, command, {"id": study.study_id, "state": state})


def stop_study(supervisor: Supervisor, command: PendingCommand) -> None:
    """Stop all trials and the study."""
    with repository.transaction(supervisor.context.connection):
        study = _find_study(supervisor, command)
        if study.state.is_over:
            raise RefusedError(f"{study.study_id} is {study.state} already")
        state = _move_study(supervisor, command, study, StudyState.STOPPING, "stopped")
        answer(supervisor, command, {"id": study.study_id, "state": state})


def extend_study(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add to the budget of a study; one that is over continues."""
    with repository.transaction(supervisor.context.connection) as connection:
        study = _find_open(supervisor, command)
        spec = study_spec(study)
        budget = spec.budget
        for name in ("trials", "gpu_hours", "wall_seconds"):
            addition = command.args.get(name)
            if addition is None:
                continue
            if getattr(budget, name) is None:
                raise RefusedError(f"{study.study_id} has no limit of {name}")
            budget = replace(budget, **{name: getattr(budget, name) + addition})
        extended = replace(spec, budget=budget).to_json()
        values = (json.dumps(extended), study.study_id)
        connection.execute("UPDATE studies SET spec = ? WHERE study_id = ?", values)
        state = _reopened(supervisor, command, study, "extended")
        result = {"id": study.study_id, "state": state, "budget": dict(extended["budget"])}
        answer(supervisor, command, result)


def enqueue_trial(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add a trial by hand, which runs next. Parameters that are not given are those of the best
    trial."""
    with repository.transaction(supervisor.context.connection) as connection:
        study = _find_open(supervisor, command)
        study_id, spec, now = study.study_id, study_spec(study), supervisor.context.now()
        if spec.pbt is not None:
            raise RefusedError(f"{study_id} trains a population, whose members all begin together")
        changes = command.args.get("set") or {}
        unknown = [name for name in changes if name not in spec.tuned]
        if unknown:
            tuned = ", ".join(spec.tuned)
            raise RefusedError(f"{unknown[0]} is not tuned; {study_id} tunes {tuned}")
        best = best_trial(read_trials(connection, study_id), spec.objectives)
        params = {**({} if best is None else best.params), **changes}
        for dimension in spec.space:
            name = dimension.name
            if name not in params:
                why = "there is no best trial to copy it from"
                raise RefusedError(f"{name} needs a value: {why}")
            if not dimension.holds(params[name]):
                raise RefusedError(f"{name}: {params[name]!r} is outside of the study's space")
        number = rows.next_number(connection, study_id)
        state, origin = TrialState.ENQUEUED, "enqueued"
        rows.insert_trial(connection, study_id, number, params, state=state, origin=origin, now=now)
        _reopened(supervisor, command, study, "a point was added")
        text = f"trial {number} of {study_id} was added"
        result = {"id": study_id, "trial": number, "params": params, "text": text}
        answer(supervisor, command, result)


def prune_trial(supervisor: Supervisor, command: PendingCommand) -> None:
    """Cut a running trial short now, as a pruner does."""
    connection = supervisor.context.connection
    study, trial = _trial_to_change(supervisor, command)
    number, reason = trial.number, f"pruned by {command.actor}"
    run = get_run(connection, trial.run_id or "")
    if run is None or run.state.is_over:
        text = f"trial {number} does not run; only one that runs can be cut short"
        raise RefusedError(text)

    def note() -> None:
        # The study's process may have ended it meanwhile.
        state = _trial_to_change(supervisor, command)[1].state
        if state is not TrialState.RUNNING:
            raise RefusedError(f"trial {number} is {state}; only one that runs can be cut short")
        rows.set_wish(connection, study.study_id, number, "prune")
        rows.cut_short(connection, study.study_id, number, reason)
        result = {"id": study.study_id, "trial": number, "state": TrialState.PRUNING}
        text = f"trial {number} of {study.study_id} is cut short"
        answer(supervisor, command, {**result, "text": text})

    supervisor.stop(run, intent="stop", actor=command.actor, at_once=True, reason=reason, note=note)


def keep_trial(supervisor: Supervisor, command: PendingCommand) -> None:
    """Never cut a trial short, or with ``keep`` false leave it to the pruner again."""
    with repository.transaction(supervisor.context.connection) as connection:
        study, trial = _trial_to_change(supervisor, command)
        study_id, number = study.study_id, trial.number
        if study_spec(study).pruner.kind == "none":
            raise RefusedError(f"{study_id} cuts no trial short; its pruner is none")
        if trial.state not in (TrialState.ENQUEUED, TrialState.LAUNCHING, TrialState.RUNNING):
            again = "gputui study enqueue runs its point again"
            raise RefusedError(f"trial {number} is {trial.state}; {again}")
        wish: Wish | None = "keep" if command.args.get("keep", True) else None
        rows.set_wish(connection, study_id, number, wish)
        what = "is left to the pruner" if wish is None else "runs to its end"
        text = f"trial {number} of {study_id} {what}"
        result = {"id": study_id, "trial": number, "wish": wish, "text": text}
        answer(supervisor, command, result)


def _find_study(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    wanted = str(command.args.get("study") or "")
    study = get_study(supervisor.context.connection, wanted)
    if study is None:
        raise RefusedError(f"no study {wanted!r}; gputui studies lists them")
    return study


def _find_open(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    """The study, unless it is about to stop."""
    study = _find_study(supervisor, command)
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")
    return study


def _trial_to_change(supervisor: Supervisor, command: PendingCommand) -> tuple[StudyRecord, TrialRecord]:
    """The trial that the command names. Raises RefusedError if there is none, and for members of a
    population."""
    study, number = _find_study(supervisor, command), command.args.get("trial")
    if study_spec(study).pbt is not None:
        text = f"{study.study_id} trains a population, whose members are not pruned"
        raise RefusedError(text)
    for trial in read_trials(supervisor.context.connection, study.study_id):
        if trial.number == number:
            return study, trial
    raise RefusedError(f"{study.study_id} has no trial {number}")


def _reopened(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, does: str) -> StudyState:
    """Continue a study that is over; return its state."""
    target = StudyState.RUNNING if study.state.is_over else study.state
    return _move_study(supervisor, command, study, target, does)


def _move_study(
    supervisor: Supervisor, command: PendingCommand, study: StudyRecord, target: StudyState, does: str
) -> StudyState:
    """Move a study to a state, unless it is there; return that."""
    connection, now, actor = supervisor.context.connection, supervisor.context.now(), command.actor
    if study.state is not target:
        cause = f"{does} by {actor}"
        rows.move_study(connection, study, target, cause=cause, actor=actor, now=now)
    return target
