"""Studies and trials as JSON, which is stable: fields are only ever added.

``trials`` is a count by state in a list of studies, and a list of trials for one study.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from gputui.core.config import Workspace
from gputui.core.units import iso
from gputui.store.json_shapes import number_or_word
from gputui.store.studies import (
    RungValue,
    StudyRecord,
    TrialRecord,
    TrialState,
    read_trials,
    rungs_by_trial,
    study_gpu_hours,
)
from gputui.studies.analysis import rank_trials
from gputui.studies.rows import JOURNAL_FILE
from gputui.studies.spec import StudySpec, study_spec

if TYPE_CHECKING:
    from gputui.studies.report import StudyFindings


def study_shape(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> dict[str, Any]:
    """A study of ``gputui study list --json``, with the number of trials in each state. ``best``
    has one trial, or the Pareto front of several objectives; ``sampler`` and ``pruner`` are null
    for a population."""
    trials = read_trials(connection, study.study_id, at)
    end_at = now if at is None else at
    hours = study_gpu_hours(connection, study.study_id, end_at)
    return _study_shape(study, study_spec(study), trials, hours)


def show_shape(
    connection: sqlite3.Connection,
    study: StudyRecord,
    now: float,
    at: float | None,
    workspace: Workspace,
    waiting: Mapping[str, str],
) -> dict[str, Any]:
    """A study of ``gputui study show --json``: with its space, its Optuna storage, and a list of
    trials with their values at rungs.

    Args:
        connection: the open database.
        study: the stored study.
        now: UTC unix seconds.
        at: the past time that is shown, in UTC unix seconds; None for now.
        workspace: where the study's folder is.
        waiting: what queued runs wait for, by run.
    """
    spec = study_spec(study)
    trials = read_trials(connection, study.study_id, at)
    end_at = now if at is None else at
    hours = study_gpu_hours(connection, study.study_id, end_at)
    rungs = rungs_by_trial(connection, study.study_id, at)
    return {
        **_study_shape(study, spec, trials, hours),
        "space": [asdict(dimension) for dimension in spec.space],
        "storage": str(workspace.studies / study.study_id / JOURNAL_FILE),
        "source": study.source,
        "trials": [
            {
                **_trial_shape(trial),
                "waits_for": waiting.get(trial.run_id or ""),
                "rungs": [_rung_shape(rung) for rung in rungs[trial.number]],
            }
            for trial in trials
        ],
    }


def report_shape(findings: StudyFindings) -> dict[str, Any]:
    """``gputui study report --json``: the study of ``gputui study list`` with every ranked trial,
    each with the command that trains it. ``saved_share`` (0 to 1) is what pruning saved of full
    runs' compute, null without pruned trials; ``importances`` of each objective are null while too
    few trials are complete."""
    # Lists of studies need neither drawings nor Optuna.
    from gputui.studies.importances import evaluate_importances
    from gputui.studies.report import saved_share, winner_command

    spec = findings.results.spec
    trials = findings.results.trials
    best = [
        {**_trial_shape(trial), "command": winner_command(findings, trial)}
        for trial in rank_trials(trials, spec.objectives)
    ]
    return {
        **_study_shape(findings.results.study, spec, trials, findings.results.gpu_hours),
        "best": best,
        "running_seconds": findings.results.running_seconds,
        "saved_share": saved_share(spec, trials),
        "importances": [msgspec.structs.asdict(importance) for importance in evaluate_importances(trials, spec)]
        or None,
        "not_complete": [
            _trial_shape(trial) for trial in trials if trial.state.is_over and trial.state is not TrialState.COMPLETE
        ],
    }


def _study_shape(
    study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], gpu_hours: float
) -> dict[str, Any]:
    """The common part."""
    states = Counter(trial.state for trial in trials)
    objectives = spec.objectives
    return {
        "id": study.study_id,
        "name": study.name,
        "profile": study.profile,
        "state": study.state,
        "reason": study.reason,
        "problem": study.problem,
        "created_at": iso(study.created_at),
        "ended_at": iso(study.ended_at),
        "objectives": [{"metric": objective.metric, "direction": objective.direction} for objective in objectives],
        "sampler": None if spec.pbt is not None else spec.sampler.kind,
        "pruner": None if spec.pbt is not None else spec.pruner.kind,
        "budget": asdict(spec.budget),
        "trials": {state.value: states[state] for state in TrialState},
        "target": spec.target_name,
        "gpu_hours": gpu_hours,
        "best": [_trial_shape(trial) for trial in rank_trials(trials, objectives, most=1)],
    }


def _rung_shape(rung: RungValue) -> dict[str, Any]:
    value = number_or_word(rung.value)
    at = iso(rung.at)
    return {"rung": rung.rung, "step": rung.step, "value": value, "attempt": rung.attempt, "at": at}


def _trial_shape(trial: TrialRecord) -> dict[str, Any]:
    """A trial. ``value`` is that at its last rung until it is complete, null with several
    objectives; ``parent`` is the member that it continued from; ``request`` is keep or prune where a
    person said so."""
    return {
        "number": trial.number,
        "run": trial.run_id,
        "state": trial.state,
        "origin": trial.origin,
        "params": dict(trial.params),
        "rung": trial.rung,
        "value": number_or_word(trial.shown_value) if len(trial.values) < 2 else None,
        "values": [number_or_word(value) for value in trial.values],
        "constraints": [number_or_word(value) for value in trial.constraints],
        "reason": trial.reason,
        "parent": trial.parent,
        "generation": trial.generation,
        "request": trial.request,
        "created_at": iso(trial.created_at),
        "ended_at": iso(trial.ended_at),
    }
