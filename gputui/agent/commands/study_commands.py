"""Commands about studies: begin, pause, resume, stop and extend a study, and enqueue, prune or keep a trial."""

from __future__ import annotations

import json
import shutil
import sqlite3

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
    ticket, _ = read_ticket(supervisor.context.workspace, str(command.args.get("ticket") or ""))
    spec = msgspec.convert(command.args["spec"], StudySpec)
    home = supervisor.context.workspace.studies
    connection = supervisor.context.connection
    try:
        home.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        name = repository.fitting_name(spec.name)
        used_ids = {path.name for path in home.iterdir()}
        used_ids |= {row[0] for row in connection.execute("SELECT study_id FROM studies")}
        study_id = next(
            f"{name}-{number}" for number in range(1, len(used_ids) + 2) if f"{name}-{number}" not in used_ids
        )
        folder = home / study_id
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        (folder / rows.SPEC_FILE).hardlink_to(ticket)
    except OSError as error:
        raise RefusedError(f"cannot make the study's folder: {error}; free some disk space") from error
    source = str(command.args.get("source") or "")
    now = supervisor.context.now()
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
        _move(supervisor, command, study, StudyState.PAUSED, f"paused by {command.actor}")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume a paused or stopped study with the trials that were stopped with it; failed launches are repeated."""
    connection = supervisor.context.connection
    with transaction(connection):
        study = _find(supervisor, command)
        if study.state.is_over and study.state is not StudyState.STOPPED:
            raise RefusedError(f"{study.study_id} is {study.state}; gputui study extend gives it more")
        _refuse_while_stopping(study)
        if study.state is StudyState.STOPPED:
            rows.enqueue_stopped(connection, study.study_id)
        connection.execute(
            "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL",
            (study.study_id,),
        )
        _move(supervisor, command, study, StudyState.RUNNING, f"resumed by {command.actor}")


def stop(supervisor: Supervisor, command: PendingCommand) -> None:
    """Stop all trials and the study."""
    with transaction(supervisor.context.connection):
        study = _find(supervisor, command)
        if study.state.is_over:
            raise RefusedError(f"{study.study_id} is {study.state} already")
        _move(supervisor, command, study, StudyState.STOPPING, f"stopped by {command.actor}")


def extend(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add to the budget of a study; one that is over continues."""
    connection = supervisor.context.connection
    # One transaction, because the study's process may end the study by its old budget meanwhile.
    with transaction(connection):
        study = _find(supervisor, command)
        _refuse_while_stopping(study)
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
        connection.execute("UPDATE studies SET spec = ? WHERE study_id = ?", (json.dumps(extended), study.study_id))
        state = _reopen(supervisor, command, study, f"extended by {command.actor}")
        answer(supervisor, command, {"id": study.study_id, "state": state, "budget": dict(extended["budget"])})


def enqueue(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add a trial by hand, which runs next. Parameters that are not given are those of the best trial."""
    connection = supervisor.context.connection
    with transaction(connection):
        study = _find(supervisor, command)
        _refuse_while_stopping(study)
        spec = study_spec(study)
        if spec.pbt is not None:
            raise RefusedError(f"{study.study_id} trains a population, whose members all begin together")
        changes = command.args.get("set") or {}
        unknown = [name for name in changes if name not in spec.tuned]
        if unknown:
            raise RefusedError(f"{unknown[0]} is not tuned; {study.study_id} tunes {', '.join(spec.tuned)}")
        best = best_trial(read_trials(connection, study.study_id), spec.objectives)
        params = {**({} if best is None else best.params), **changes}
        for dimension in spec.space:
            if dimension.name not in params:
                raise RefusedError(f"{dimension.name} needs a value: there is no best trial to copy it from")
            if not dimension.holds(params[dimension.name]):
                raise RefusedError(f"{dimension.name}: {params[dimension.name]!r} is outside of the study's space")
        number = rows.next_number(connection, study.study_id)
        rows.insert_trial(
            connection,
            study.study_id,
            number,
            params,
            state=TrialState.ENQUEUED,
            origin="enqueued",
            now=supervisor.context.now(),
        )
        _reopen(supervisor, command, study, f"a point was added by {command.actor}")
        text = f"trial {number} of {study.study_id} was added"
        answer(supervisor, command, {"id": study.study_id, "trial": number, "params": params, "text": text})


def prune(supervisor: Supervisor, command: PendingCommand) -> None:
    """Cut a running trial short now, as a pruner does."""
    connection = supervisor.context.connection
    study = _find(supervisor, command)
    trial = _trial_to_change(connection, command, study)
    run = None if trial.run_id is None else get_run(connection, trial.run_id)
    if run is None or run.state.is_over:
        raise RefusedError(f"trial {trial.number} does not run; only one that runs can be cut short")
    reason = f"pruned by {command.actor}"

    def note() -> None:
        # The study's process may have ended it meanwhile.
        state = _trial_to_change(connection, command, study).state
        if state is not TrialState.RUNNING:
            raise RefusedError(f"trial {trial.number} is {state}; only one that runs can be cut short")
        rows.set_wish(connection, study.study_id, trial.number, "prune")
        rows.cut_short(connection, study.study_id, trial.number, reason)
        result = {"id": study.study_id, "trial": trial.number, "state": TrialState.PRUNING}
        answer(supervisor, command, {**result, "text": f"trial {trial.number} of {study.study_id} is cut short"})

    supervisor.stop(run, intent="stop", actor=command.actor, at_once=True, reason=reason, note=note)


def keep(supervisor: Supervisor, command: PendingCommand) -> None:
    """Never cut a trial short, or with ``keep`` false leave it to the pruner again."""
    connection = supervisor.context.connection
    with transaction(connection):
        study = _find(supervisor, command)
        trial = _trial_to_change(connection, command, study)
        if study_spec(study).pruner.kind == "none":
            raise RefusedError(f"{study.study_id} cuts no trial short; its pruner is none")
        if trial.state not in (TrialState.ENQUEUED, TrialState.LAUNCHING, TrialState.RUNNING):
            raise RefusedError(f"trial {trial.number} is {trial.state}; gputui study enqueue runs its point again")
        wish: Wish | None = "keep" if command.args.get("keep", True) else None
        rows.set_wish(connection, study.study_id, trial.number, wish)
        what = "is left to the pruner" if wish is None else "runs to its end"
        text = f"trial {trial.number} of {study.study_id} {what}"
        answer(supervisor, command, {"id": study.study_id, "trial": trial.number, "wish": wish, "text": text})


def _trial_to_change(connection: sqlite3.Connection, command: PendingCommand, study: StudyRecord) -> TrialRecord:
    """The trial that the command names. Raises RefusedError if there is none, and for members of a population."""
    spec, trials = study_spec(study), read_trials(connection, study.study_id)
    if spec.pbt is not None:
        raise RefusedError(f"{study.study_id} trains a population, whose members are not pruned")
    number = command.args.get("trial")
    found = next((trial for trial in trials if trial.number == number), None)
    if found is None:
        raise RefusedError(f"{study.study_id} has no trial {number}")
    return found


def _refuse_while_stopping(study: StudyRecord) -> None:
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")


def _reopen(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, cause: str) -> StudyState:
    """Continue a study that is over; return its state."""
    if not study.state.is_over:
        return study.state
    now = supervisor.context.now()
    rows.move_study(supervisor.context.connection, study, StudyState.RUNNING, cause=cause, actor=command.actor, now=now)
    return StudyState.RUNNING


def _find(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    wanted = str(command.args.get("study") or "")
    study = get_study(supervisor.context.connection, wanted)
    if study is None:
        raise RefusedError(f"no study {wanted!r}; gputui studies lists them")
    return study


def _move(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, target: StudyState, cause: str) -> None:
    """Move a study and answer, in the transaction that read it."""
    connection, now = supervisor.context.connection, supervisor.context.now()
    if study.state is not target:
        rows.move_study(connection, study, target, cause=cause, actor=command.actor, now=now)
    answer(supervisor, command, {"id": study.study_id, "state": target})
