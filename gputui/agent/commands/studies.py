"""Commands about studies and their trials."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from itertools import count

import msgspec

from gputui.agent.commands.request import CommandRequest, RefusedError, Result
from gputui.agent.commands.runs import end_run
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.runs import repository
from gputui.runs.spec import Scalar
from gputui.store.runs import get_run
from gputui.store.studies import OUTSIDE, StudyRecord, StudyState, TrialRecord, TrialState, Wish, get_study, read_trials
from gputui.studies import rows
from gputui.studies.analysis import best_trial
from gputui.studies.spec import StudySpec, study_spec


def begin(request: CommandRequest) -> Result:
    """Begin a study. Like a run's, its private specification is a ticket."""
    context, connection = request.context, request.connection
    ticket, _ = request.ticket()
    spec = msgspec.convert(request.args["spec"], StudySpec)
    home, name = context.workspace.studies, repository.fitting_name(spec.name)
    try:
        home.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        used_ids = {path.name for path in home.iterdir()}
        used_ids |= {row[0] for row in connection.execute("SELECT study_id FROM studies")}
        ids = (f"{name}-{number}" for number in count(1))
        study_id = next(each for each in ids if each not in used_ids)
        folder = home / study_id
        folder.mkdir(mode=PRIVATE_DIR_MODE)
        request.undo.callback(shutil.rmtree, folder)
        (folder / rows.SPEC_FILE).hardlink_to(ticket)
    except OSError as error:
        text = f"cannot make the study's folder: {error}; free some disk space"
        raise RefusedError(text) from error
    source = str(request.args.get("source") or "")
    rows.begin_study(connection, study_id, spec, source=source, now=context.now(), actor=request.actor)
    request.afterwards.append(partial(ticket.unlink, missing_ok=True))
    return {"id": study_id, "state": StudyState.RUNNING}


def pause(request: CommandRequest) -> Result:
    """Begin no more trials; running ones continue."""
    study = _find_study(request)
    if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
        raise RefusedError(f"{study.study_id} is {study.state}")
    return _moved(request, study, StudyState.PAUSED, "paused")


def resume(request: CommandRequest) -> Result:
    """Resume a paused or stopped study with the trials that were stopped with it; failed launches
    are repeated."""
    study = _find_open(request)
    study_id = study.study_id
    if study.state.is_over and study.state is not StudyState.STOPPED:
        raise RefusedError(f"{study_id} is {study.state}; gputui study extend gives it more")
    if study.state is StudyState.STOPPED:
        rows.enqueue_stopped(request.connection, study_id)
    request.connection.execute(
        "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL", (study_id,)
    )
    return _moved(request, study, StudyState.RUNNING, "resumed")


def stop(request: CommandRequest) -> Result:
    """Stop all trials and the study."""
    study = _find_study(request)
    if study.state.is_over:
        raise RefusedError(f"{study.study_id} is {study.state} already")
    return _moved(request, study, StudyState.STOPPING, "stopped")


def extend(request: CommandRequest) -> Result:
    """Add to the budget of a study; one that is over continues."""
    study = _find_open(request)
    spec = study_spec(study)
    budget = spec.budget
    for name in ("trials", "gpu_hours", "wall_seconds"):
        addition = request.args.get(name)
        if addition is None:
            continue
        if getattr(budget, name) is None:
            raise RefusedError(f"{study.study_id} has no limit of {name}")
        budget = replace(budget, **{name: getattr(budget, name) + addition})
    values = (json.dumps(replace(spec, budget=budget).to_json()), study.study_id)
    request.connection.execute("UPDATE studies SET spec = ? WHERE study_id = ?", values)
    return {**_reopened(request, study, "extended"), "budget": asdict(budget)}


def enqueue_trial(request: CommandRequest) -> Result:
    """Ask for a trial by hand, which runs next. What is not given is as in the best trial."""
    study = _find_open(request)
    study_id, spec = study.study_id, study_spec(study)
    if spec.pbt is not None:
        raise RefusedError(f"{study_id} trains a population, whose members all begin together")
    changes = request.args.get("set") or {}
    unknown = [name for name in changes if name not in spec.tuned]
    if unknown:
        tuned = ", ".join(spec.tuned)
        raise RefusedError(f"{unknown[0]} is not tuned; {study_id} tunes {tuned}")
    best = best_trial(read_trials(request.connection, study_id), spec.objectives)
    known = {**({} if best is None else best.params), **changes}
    params: dict[str, Scalar] = {}
    for dimension in spec.space:
        name = dimension.name
        if not dimension.applies(params):
            if name in changes:
                raise RefusedError(f"{name} applies only to other points; leave it out")
            continue
        if name not in known:
            raise RefusedError(f"{name} needs a value: there is no best trial to copy it from")
        if not dimension.holds(known[name]):
            raise RefusedError(f"{name}: {known[name]!r} is outside of the study's space")
        params[name] = known[name]
    rows.request_trial(request.connection, study_id, params)
    _reopened(request, study, "a point was added")
    return {"id": study_id, "params": params, "text": f"a point was added to {study_id}; it is the next trial"}


def prune_trial(request: CommandRequest) -> Result:
    """Cut a running trial short now, as a pruner does."""
    study, trial = _trial_to_change(request)
    study_id, number, reason = study.study_id, trial.number, f"pruned by {request.actor}"
    run = get_run(request.connection, trial.run_id or "")
    if run is None or run.state.is_over or trial.state is not TrialState.RUNNING:
        raise RefusedError(f"trial {number} is {trial.state}; only one that runs can be cut short")
    end_run(request, run, "stop", at_once=True, reason=reason)
    rows.set_wish(request.connection, study_id, number, "prune")
    rows.cut_short(request.connection, study_id, number, reason)
    text = f"trial {number} of {study_id} is cut short"
    return {"id": study_id, "trial": number, "state": TrialState.PRUNING, "text": text}


def keep_trial(request: CommandRequest) -> Result:
    """Never cut a trial short, or with ``keep`` false leave it to the pruner again."""
    study, trial = _trial_to_change(request)
    study_id, number = study.study_id, trial.number
    if study_spec(study).pruner.kind == "none":
        raise RefusedError(f"{study_id} cuts no trial short; its pruner is none")
    if trial.state not in (TrialState.ENQUEUED, TrialState.LAUNCHING, TrialState.RUNNING):
        again = "gputui study enqueue runs its point again"
        raise RefusedError(f"trial {number} is {trial.state}; {again}")
    wish: Wish | None = "keep" if request.args.get("keep", True) else None
    rows.set_wish(request.connection, study_id, number, wish)
    what = "is left to the pruner" if wish is None else "runs to its end"
    text = f"trial {number} of {study_id} {what}"
    return {"id": study_id, "trial": number, "wish": wish, "text": text}


def _find_study(request: CommandRequest) -> StudyRecord:
    wanted = str(request.args.get("study") or "")
    study = get_study(request.connection, wanted)
    if study is None:
        raise RefusedError(f"no study {wanted!r}; gputui study list names them")
    return study


def _find_open(request: CommandRequest) -> StudyRecord:
    """The study, unless it is about to stop."""
    study = _find_study(request)
    if study.state is StudyState.STOPPING:
        raise RefusedError(f"{study.study_id} is stopping; wait until it is stopped")
    return study


def _trial_to_change(request: CommandRequest) -> tuple[StudyRecord, TrialRecord]:
    """The trial that the command names. Raises RefusedError if there is none, and for members of a
    population."""
    study, number = _find_study(request), request.args.get("trial")
    if study_spec(study).pbt is not None:
        text = f"{study.study_id} trains a population, whose members are not pruned"
        raise RefusedError(text)
    for trial in read_trials(request.connection, study.study_id):
        if trial.number == number and trial.origin == OUTSIDE:
            raise RefusedError(f"trial {number} belongs to another process, which alone can end it")
        if trial.number == number:
            return study, trial
    raise RefusedError(f"{study.study_id} has no trial {number}")


def _reopened(request: CommandRequest, study: StudyRecord, does: str) -> Result:
    """Continue a study that is over."""
    target = StudyState.RUNNING if study.state.is_over else study.state
    return _moved(request, study, target, does)


def _moved(request: CommandRequest, study: StudyRecord, target: StudyState, does: str) -> Result:
    """Move a study to a state, unless it is there."""
    if study.state is not target:
        actor, now = request.actor, request.context.now()
        rows.move_study(request.connection, study, target, cause=f"{does} by {actor}", actor=actor, now=now)
    return {"id": study.study_id, "state": target}
