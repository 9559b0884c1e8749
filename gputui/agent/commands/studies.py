"""Commands about studies and their trials."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import count

import msgspec

from gputui.agent.commands.request import CommandRequest, RefusedError, Result
from gputui.agent.commands.runs import end_run
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.runs import repository
from gputui.runs.spec import Scalar
from gputui.store.run_states import predicate
from gputui.store.runs import get_run
from gputui.store.studies import (
    OUTSIDE,
    StudyRecord,
    StudyState,
    TrialRecord,
    TrialState,
    TrialWish,
    get_study,
    read_trials,
)
from gputui.studies import rows
from gputui.studies.analysis import best_trial
from gputui.studies.spec import Budget, StudySpec, study_spec


def begin(request: CommandRequest) -> Result:
    """Begin a study. Like a run's, its private specification is a ticket."""
    context = request.context
    connection = request.connection
    ticket, _ = request.ticket()
    spec = msgspec.convert(request.args["spec"], StudySpec)
    studies_folder = context.workspace.studies
    name = repository.fitting_name(spec.name)
    try:
        studies_folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        used_ids = {path.name for path in studies_folder.iterdir()}
        used_ids |= {study_id for (study_id,) in connection.execute("SELECT study_id FROM studies")}
        ids = (f"{name}-{number}" for number in count(1))
        study_id = next(study_id for study_id in ids if study_id not in used_ids)
        folder = studies_folder / study_id
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        request.undo.callback(shutil.rmtree, folder)
        (folder / rows.SPEC_FILE).hardlink_to(ticket)
    except OSError as error:
        raise RefusedError(f"cannot make the study's folder: {error}; free some disk space") from error
    source = str(request.args.get("source") or "")
    rows.begin_study(connection, study_id, spec, source=source, now=context.now(), actor=request.actor)
    request.afterwards.append(partial(ticket.unlink, missing_ok=True))
    return {"id": study_id, "state": StudyState.RUNNING}


def pause(request: CommandRequest) -> Result:
    """Begin no more trials; running ones continue."""
    study = _find_study(request)
    if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
        raise RefusedError(f"{study.study_id} {predicate(study.state)}")
    return _move(request, study, StudyState.PAUSED, "paused")


def resume(request: CommandRequest) -> Result:
    """Resume a paused or stopped study with the trials that were stopped with it; failed launches
    are repeated."""
    study = _find_study_to_continue(request)
    study_id = study.study_id
    if study.state.is_over and study.state is not StudyState.STOPPED:
        raise RefusedError(f"{study_id} {predicate(study.state)}; gputui study extend gives it more")
    if study.state is StudyState.STOPPED:
        rows.enqueue_stopped(request.connection, study_id)
    rows.forget_failed_launches(request.connection, study_id)
    return _move(request, study, StudyState.RUNNING, "resumed")


def stop(request: CommandRequest) -> Result:
    """Stop all trials and the study."""
    study = _find_study(request)
    if study.state.is_over:
        raise RefusedError(f"{study.study_id} {predicate(study.state)} already")
    return _move(request, study, StudyState.STOPPING, "stopped")


def extend(request: CommandRequest) -> Result:
    """Add to the budget of a study; one that is over continues."""
    study = _find_study_to_continue(request)
    spec = study_spec(study)
    limits = asdict(spec.budget)
    if limits["trials"] is not None:
        # Points that a person added may have gone beyond it.
        trials = read_trials(request.connection, study.study_id)
        limits["trials"] = max(limits["trials"], sum(trial.origin in ("sampled", "enqueued") for trial in trials))
    for name in limits:
        addition = request.args.get(name)
        if addition is not None and limits[name] is None:
            raise RefusedError(f"{study.study_id} has no limit of {name.removesuffix('_seconds')}")
        if addition is not None:
            limits[name] += addition
    spec = replace(spec, budget=Budget(**limits))
    rows.set_spec(request.connection, study.study_id, spec)
    return {**_continue(request, study, "extended"), "budget": limits}


def enqueue_trial(request: CommandRequest) -> Result:
    """Ask for a trial by hand, which runs next. What is not given is as in the best trial."""
    study = _find_study_to_continue(request)
    study_id = study.study_id
    spec = study_spec(study)
    if spec.pbt is not None:
        raise RefusedError(f"{study_id} trains a population, whose members all begin together")
    changes = request.args.get("set") or {}
    for name in changes:
        if name not in spec.tuned:
            raise RefusedError(f"{name} is not tuned; {study_id} tunes {', '.join(spec.tuned)}")
    best = best_trial(read_trials(request.connection, study_id), spec.objectives)
    best_params = {} if best is None else best.params
    params = _point(spec, changes, best_params)
    rows.enqueue_point(request.connection, study_id, params)
    _continue(request, study, "resumed for an added trial")
    return {"id": study_id, "params": params, "text": f"{study_id} has a new trial, which runs next"}


def _point(spec: StudySpec, changes: Mapping[str, Scalar], best: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The point of ``changes``, with the values of the best trial for the other parameters."""
    values = {**best, **changes}
    params: dict[str, Scalar] = {}
    for dimension in spec.space:
        name = dimension.name
        if dimension.applies(params):
            if name not in values:
                raise RefusedError(f"{name} needs a value: there is no best trial to copy it from")
            if not dimension.holds(values[name]):
                raise RefusedError(f"{name}: {values[name]!r} is outside of the study's space")
            params[name] = values[name]
        elif name in changes:
            raise RefusedError(f"{name} applies only to other points; leave it out")
    return params


def prune_trial(request: CommandRequest) -> Result:
    """Cut a running trial short now, as a pruner does."""
    study, trial = _trial_to_change(request)
    study_id = study.study_id
    number = trial.number
    reason = f"pruned by {request.actor}"
    run = get_run(request.connection, trial.run_id or "")
    if run is None or run.state.is_over or trial.state is not TrialState.RUNNING:
        raise RefusedError(f"trial {number} {predicate(trial.state)}; only one that runs can be cut short")
    end_run(request, run, "stop", at_once=True, reason=reason)
    rows.set_wish(request.connection, study_id, number, "prune")
    rows.cut_short(request.connection, study_id, number, reason)
    text = f"trial {number} of {study_id} is cut short"
    return {"id": study_id, "trial": number, "state": TrialState.PRUNING, "text": text}


def keep_trial(request: CommandRequest) -> Result:
    """Never cut a trial short, or with ``keep`` false leave it to the pruner again."""
    study, trial = _trial_to_change(request)
    study_id = study.study_id
    number = trial.number
    if study_spec(study).pruner.kind == "none":
        raise RefusedError(f"{study_id} cuts no trial short; its pruner is none")
    if trial.state not in (TrialState.ENQUEUED, TrialState.LAUNCHING, TrialState.RUNNING):
        raise RefusedError(f"trial {number} {predicate(trial.state)}; gputui study enqueue runs its point again")
    wish: TrialWish | None = None
    does = "is left to the pruner"
    if request.args.get("keep", True):
        wish = "keep"
        does = "runs to its end"
    rows.set_wish(request.connection, study_id, number, wish)
    text = f"trial {number} of {study_id} {does}"
    return {"id": study_id, "trial": number, "request": wish, "text": text}


def _find_study(request: CommandRequest) -> StudyRecord:
    """The study that the command names. Raises RefusedError if there is none."""
    study_id = str(request.args.get("study") or "")
    study = get_study(request.connection, study_id)
    if study is None:
        raise RefusedError(f"no study {study_id!r}; gputui study list names them")
    return study


def _find_study_to_continue(request: CommandRequest) -> StudyRecord:
    """The study that the command names. Raises RefusedError if there is none, or if it is stopping just now."""
    study = _find_study(request)
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")
    return study


def _trial_to_change(request: CommandRequest) -> tuple[StudyRecord, TrialRecord]:
    """The trial that the command names. Raises RefusedError if there is none, and for members of a
    population."""
    study = _find_study(request)
    number = request.args.get("trial")
    if study_spec(study).pbt is not None:
        raise RefusedError(f"{study.study_id} trains a population, whose members are not pruned")
    trials = read_trials(request.connection, study.study_id)
    trial = next((trial for trial in trials if trial.number == number), None)
    if trial is None:
        raise RefusedError(f"{study.study_id} has no trial {number}")
    if trial.origin == OUTSIDE:
        raise RefusedError(f"trial {number} belongs to another process, which alone can end it")
    return study, trial


def _continue(request: CommandRequest, study: StudyRecord, does: str) -> Result:
    """Let a study that is over run again; another one stays in its state."""
    target = StudyState.RUNNING if study.state.is_over else study.state
    return _move(request, study, target, does)


def _move(request: CommandRequest, study: StudyRecord, target: StudyState, does: str) -> Result:
    """Move a study to a state, unless it is there."""
    if study.state is not target:
        actor = request.actor
        now = request.context.now()
        rows.move_study(request.connection, study, target, cause=f"{does} by {actor}", actor=actor, now=now)
    return {"id": study.study_id, "state": target}
