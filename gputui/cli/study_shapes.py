"""JSON of studies and trials: stable, fields are only ever added.

``trials`` is a count by state in the list of studies, and a list of trials where one study is shown.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from gputui.store.json_shapes import iso
from gputui.store.studies import (
    StudyRecord,
    TrialRecord,
    TrialState,
    read_rungs,
    read_trials,
    study_gpu_hours,
)
from gputui.studies.analysis import ranked
from gputui.studies.spec import StudySpec, known_study_spec


def study_shape(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> dict[str, Any]:
    """One study of ``gputui studies --json``, with the number of trials in each state. ``best`` has one trial, or the
    Pareto front of several objectives."""
    trials = read_trials(connection, study.study_id, at)
    hours = study_gpu_hours(connection, study.study_id, now if at is None else at)
    return _study_shape(study, known_study_spec(study), trials, hours)


def show_shape(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> dict[str, Any]:
    """``gputui study show --json``: the study with its space, and its trials as a list, each with its values at
    rungs."""
    spec = known_study_spec(study)
    trials = read_trials(connection, study.study_id, at)
    hours = study_gpu_hours(connection, study.study_id, now if at is None else at)
    rungs: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in read_rungs(connection, study.study_id, at):
        passed = {"rung": one.rung, "step": one.step, "value": one.value, "attempt": one.attempt, "at": iso(one.at)}
        rungs[one.number].append(passed)
    return {
        **_study_shape(study, spec, trials, hours),
        "space": [] if spec is None else list(spec.to_json()["space"]),
        "source": study.source,
        "trials": [{**_trial_shape(one), "rungs": rungs[one.number]} for one in trials],
    }


def _study_shape(
    study: StudyRecord, spec: StudySpec | None, trials: Sequence[TrialRecord], gpu_hours: float
) -> dict[str, Any]:
    """What both outputs have. ``spec`` is None where this gputui cannot read the study."""
    states = Counter(one.state for one in trials)
    objectives = () if spec is None else spec.objectives
    best = ranked(trials, objectives) if objectives else []
    return {
        "id": study.study_id,
        "name": study.name,
        "profile": study.profile,
        "state": study.state,
        "reason": study.reason,
        "created_at": iso(study.created_at),
        "ended_at": iso(study.ended_at),
        "objectives": [{"metric": one.metric, "direction": one.direction} for one in objectives],
        "sampler": None if spec is None else spec.sampler.kind,
        "pruner": None if spec is None else spec.pruner.kind,
        "budget": None if spec is None else dict(spec.to_json()["budget"]),
        "trials": {state.value: states[state] for state in TrialState},
        "gpu_hours": gpu_hours,
        "best": [_trial_shape(one) for one in (best if len(objectives) > 1 else best[:1])],
    }


def _trial_shape(trial: TrialRecord) -> dict[str, Any]:
    """One trial. ``value`` is that of the first objective, ``parent`` the member that it went on from."""
    return {
        "number": trial.number,
        "run": trial.run_id,
        "state": trial.state,
        "origin": trial.origin,
        "params": dict(trial.params),
        "rung": trial.rung,
        "value": trial.value,
        "values": list(trial.values),
        "constraints": list(trial.constraints),
        "reason": trial.reason,
        "parent": trial.parent,
        "generation": trial.generation,
        "created_at": iso(trial.created_at),
        "ended_at": iso(trial.ended_at),
    }
