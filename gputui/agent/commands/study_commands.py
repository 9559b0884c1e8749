"""Commands about studies: begin, pause, resume, stop and extend a study, and enqueue, prune or keep
a trial. Each reads the study in its transaction, because the study's process changes it too."""

from __future__ import annotations

import json
import shutil
import sqlite3
from itertools import count

import msgspec
from msgspec.structs import replace

from gputui.agent.commands.handlers import RefusedError, answer
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.submission import read_ticket
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.runs import get_run
from gputui.store.studies import StudyRecord, StudyState, TrialRecord, TrialState, Wish, get_study, read_trials
from gputui.studies import rows
from gputui.studies.analysis import best_trial
from gputui.studies.spec import StudySpec, study_spec


def begin(supervisor: Supervisor, command: PendingCommand) -> None:
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
        with transaction(connection):
            rows.begin_study(connection, study_id, spec, source=source, now=now, actor=command.actor)
            answer(supervisor, command, {"id": study_id, "state": StudyState.RUNNING})
    except (sqlite3.Error, WithdrawnError):
        shutil.rmtree(folder)
        raise
    ticket.unlink(missing_ok=True)


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin no more trials; running ones continue."""
    with transaction(supervisor.context.connection):
        study = _find(supervisor, command)
        if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
            raise RefusedError(f"{study.study_id} is {study.state}")
        _move(supervisor, command, study, StudyState.PAUSED, "paused")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume a paused or stopped study with the trials that were stopped with it; failed launches
    are repeated."""
    with transaction(supervisor.context.connection) as connection:
        study = _find_open(supervisor, command)
        study_id = study.study_id
        if study.state.is_over and study.state is not StudyState.STOPPED:
            raise RefusedError(f"{study_id} is {study.state}; gputui study extend gives it more")
        if study.state is StudyState.STOPPED:
            rows.enqueue_stopped(connection, study_id)
        connection.execute(
            "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL", (study_id,)
        )
        _move(supervisor, command, study, StudyState.RUNNING, "resumed")


def stop(supervisor: Supervisor, command: PendingCommand) -> None:
    """Stop all trials and the study."""
    with transaction(supervisor.context.connection):
        study = _find(supervisor, command)
        if study.state.is_over:
            raise RefusedError(f"{study.study_id} is {study.state} already")
        _move(supervisor, command, study, StudyState.STOPPING, "stopped")


def extend(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add to the budget of a study; one that is over continues."""
    with transaction(supervisor.context.connection) as connection:
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
        state = _reopen(supervisor, command, study, "extended")
        result = {"id": study.study_id, "state": state, "budget": dict(extended["budget"])}
        answer(supervisor, command, result)


def enqueue(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add a trial by hand, which runs next. Parameters that are not given are those of the best
    trial."""
    with transaction(supervisor.context.connection) as connection:
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
        _reopen(supervisor, command, study, "a point was added")
        text = f"trial {number} of {study_id} was added"
        result = {"id": study_id, "trial": number, "params": params, "text": text}
        answer(supervisor, command, result)


def prune(supervisor: Supervisor, command: PendingCommand) -> None:
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


def keep(supervisor: Supervisor, command: PendingCommand) -> None:
    """Never cut a trial short, or with ``keep`` false leave it to the pruner again."""
    with transaction(supervisor.context.connection) as connection:
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


def _find(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    wanted = str(command.args.get("study") or "")
    study = get_study(supervisor.context.connection, wanted)
    if study is None:
        raise RefusedError(f"no study {wanted!r}; gputui studies lists them")
    return study


def _find_open(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    """The study, unless it is about to stop."""
    study = _find(supervisor, command)
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")
    return study


def _trial_to_change(supervisor: Supervisor, command: PendingCommand) -> tuple[StudyRecord, TrialRecord]:
    """The trial that the command names. Raises RefusedError if there is none, and for members of a
    population."""
    study, number = _find(supervisor, command), command.args.get("trial")
    if study_spec(study).pbt is not None:
        text = f"{study.study_id} trains a population, whose members are not pruned"
        raise RefusedError(text)
    for trial in read_trials(supervisor.context.connection, study.study_id):
        if trial.number == number:
            return study, trial
    raise RefusedError(f"{study.study_id} has no trial {number}")


def _reopen(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, does: str) -> StudyState:
    """Continue a study that is over; return its state."""
    if not study.state.is_over:
        return study.state
    _change(supervisor, command, study, StudyState.RUNNING, does)
    return StudyState.RUNNING


def _move(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, target: StudyState, does: str) -> None:
    """Move a study and answer, in the transaction that read it."""
    if study.state is not target:
        _change(supervisor, command, study, target, does)
    answer(supervisor, command, {"id": study.study_id, "state": target})


def _change(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, target: StudyState, does: str) -> None:
    connection, now, actor = supervisor.context.connection, supervisor.context.now(), command.actor
    cause = f"{does} by {actor}"
    rows.move_study(connection, study, target, cause=cause, actor=actor, now=now)
