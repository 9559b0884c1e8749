"""Answering the commands about studies: beginning one, pausing, stopping and extending it, and adding a point by
hand."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from typing import Any

from gputui.agent.commands.refusal import RefusedError
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import PRIVATE_DIR_MODE
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.submission import read_ticket
from gputui.store import commands
from gputui.store.commands import PendingCommand, WithdrawnError
from gputui.store.studies import StudyRecord, StudyState, TrialState, get_study, read_trials
from gputui.studies import rows
from gputui.studies.analysis import best_trial
from gputui.studies.spec import StudySpec, StudySpecError


def begin(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin a study: its private specification is a ticket, as that of a run. Raises SpecError."""
    ticket, _ = read_ticket(supervisor.context.workspace, str(command.args.get("ticket") or ""))
    spec = _spec(command.args.get("spec") or {})
    home = supervisor.context.workspace.studies
    connection = supervisor.context.connection
    try:
        home.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        name = repository.fitting_name(spec.name)
        taken = {path.name for path in home.iterdir()}
        taken |= {row[0] for row in connection.execute("SELECT study_id FROM studies")}
        study_id = next(f"{name}-{number}" for number in range(1, len(taken) + 2) if f"{name}-{number}" not in taken)
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
            _answer(supervisor, command, {"id": study_id, "state": StudyState.RUNNING})
    except (sqlite3.Error, WithdrawnError):
        shutil.rmtree(folder)
        raise
    ticket.unlink(missing_ok=True)


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Begin no more trials; those that run go on."""
    with transaction(supervisor.context.connection):
        study = _find(supervisor, command)
        if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
            raise RefusedError(f"{study.study_id} is {study.state}")
        _move(supervisor, command, study, StudyState.PAUSED, f"paused by {command.actor}")


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Go on; a trial that could not be launched is tried again, and those that were stopped with the study go on. A
    study that is over otherwise needs a larger budget."""
    connection = supervisor.context.connection
    with transaction(connection):
        study = _find(supervisor, command)
        if study.state.is_over and study.state is not StudyState.STOPPED:
            raise RefusedError(f"{study.study_id} is {study.state}; gputui study extend gives it more")
        _refuse_while_stopping(study)
        if study.state is StudyState.STOPPED:
            rows.take_up_stopped(connection, study.study_id)
        connection.execute(
            "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL",
            (study.study_id,),
        )
        _move(supervisor, command, study, StudyState.RUNNING, f"resumed by {command.actor}")


def stop(supervisor: Supervisor, command: PendingCommand) -> None:
    """Ask all trials to stop, and end the study."""
    with transaction(supervisor.context.connection):
        study = _find(supervisor, command)
        if study.state.is_over:
            raise RefusedError(f"{study.study_id} is {study.state} already")
        _move(supervisor, command, study, StudyState.STOPPING, f"stopped by {command.actor}")


def extend(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add to the budget while the study continues, or let one that is over go on."""
    connection = supervisor.context.connection
    # The study's process may end the study meanwhile, by the budget that it knew.
    with transaction(connection):
        study = _find(supervisor, command)
        _refuse_while_stopping(study)
        spec = _spec(json.loads(study.spec_json))
        budget = spec.budget
        for name in ("trials", "gpu_hours", "wall_seconds"):
            more = command.args.get(name)
            if more is None:
                continue
            if getattr(budget, name) is None:
                raise RefusedError(f"{study.study_id} has no limit of {name}")
            budget = replace(budget, **{name: getattr(budget, name) + more})
        extended = replace(spec, budget=budget).to_json()
        connection.execute("UPDATE studies SET spec = ? WHERE study_id = ?", (json.dumps(extended), study.study_id))
        state = _begin_again(supervisor, command, study, f"extended by {command.actor}")
        _answer(supervisor, command, {"id": study.study_id, "state": state, "budget": dict(extended["budget"])})


def enqueue(supervisor: Supervisor, command: PendingCommand) -> None:
    """Add a point by hand; it is the next trial. What is not given is as in the best trial so far."""
    connection = supervisor.context.connection
    with transaction(connection):
        study = _find(supervisor, command)
        _refuse_while_stopping(study)
        spec = _spec(json.loads(study.spec_json))
        if spec.pbt is not None:
            raise RefusedError(f"{study.study_id} trains a population, whose members all begin together")
        given = command.args.get("set") or {}
        unknown = [name for name in given if name not in spec.tuned]
        if unknown:
            raise RefusedError(f"{unknown[0]} is not tuned; {study.study_id} tunes {', '.join(spec.tuned)}")
        best = best_trial(read_trials(connection, study.study_id), spec.objectives[0])
        params = {**({} if best is None else best.params), **given}
        for dimension in spec.space:
            if dimension.name not in params:
                raise RefusedError(f"no trial is complete yet: give {dimension.name}, too")
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
        _begin_again(supervisor, command, study, f"a point was added by {command.actor}")
        _answer(supervisor, command, {"id": study.study_id, "trial": number, "params": params})


def _refuse_while_stopping(study: StudyRecord) -> None:
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")


def _begin_again(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, cause: str) -> StudyState:
    """Let a study that is over go on: its state."""
    if not study.state.is_over:
        return study.state
    now = supervisor.context.now()
    rows.move_study(supervisor.context.connection, study, StudyState.RUNNING, cause=cause, actor=command.actor, now=now)
    return StudyState.RUNNING


def _find(supervisor: Supervisor, command: PendingCommand) -> StudyRecord:
    wanted = str(command.args.get("study") or "")
    found = get_study(supervisor.context.connection, wanted)
    if found is None:
        raise RefusedError(f"no study {wanted!r}; gputui studies lists them")
    return found


def _move(supervisor: Supervisor, command: PendingCommand, study: StudyRecord, target: StudyState, cause: str) -> None:
    """Move a study and answer, within the transaction in which it was read."""
    connection, now = supervisor.context.connection, supervisor.context.now()
    if study.state is not target:
        rows.move_study(connection, study, target, cause=cause, actor=command.actor, now=now)
    _answer(supervisor, command, {"id": study.study_id, "state": target})


def _answer(supervisor: Supervisor, command: PendingCommand, result: dict[str, Any]) -> None:
    commands.give_answer(
        supervisor.context.connection, command.command_id, "done", now=supervisor.context.now(), result=result
    )


def _spec(data: dict[str, Any]) -> StudySpec:
    try:
        return StudySpec.from_json(data)
    except StudySpecError as error:
        raise RefusedError(f"{error}; update gputui") from error
