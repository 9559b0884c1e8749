"""JSON of studies and trials: stable, fields are only ever added."""

from __future__ import annotations

import json
import sqlite3
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
from gputui.studies.spec import StudySpec, StudySpecError


def spec_of(study: StudyRecord) -> StudySpec | None:
    """What the study is; None where this gputui cannot read it."""
    try:
        return StudySpec.from_json(json.loads(study.spec_json))
    except (StudySpecError, ValueError):
        return None


def best_trials(study: StudyRecord, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The complete trials, best first, or the Pareto front; none where this gputui cannot read the study."""
    spec = spec_of(study)
    return [] if spec is None else ranked(trials, spec.objectives)


def study_shape(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> dict[str, Any]:
    """One study of ``gputui studies --json``. ``best`` has one trial, or the Pareto front of several objectives."""
    spec = spec_of(study)
    trials = read_trials(connection, study.study_id, at)
    counts = {state.value: sum(one.state is state for one in trials) for state in TrialState}
    best = best_trials(study, trials)
    is_single = spec is None or len(spec.objectives) == 1
    return {
        "id": study.study_id,
        "name": study.name,
        "profile": study.profile,
        "state": study.state,
        "reason": study.reason,
        "created_at": iso(study.created_at),
        "ended_at": iso(study.ended_at),
        "objectives": [] if spec is None else [{"metric": o.metric, "direction": o.direction} for o in spec.objectives],
        "sampler": None if spec is None else spec.sampler.kind,
        "pruner": None if spec is None else spec.pruner.kind,
        "budget": None if spec is None else dict(spec.to_json()["budget"]),
        "trials": counts,
        "gpu_hours": study_gpu_hours(connection, study.study_id, now if at is None else at),
        "best": [trial_shape(one) for one in (best[:1] if is_single else best)],
    }


def trial_shape(trial: TrialRecord) -> dict[str, Any]:
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


def show_shape(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> dict[str, Any]:
    """``gputui study show --json``: the study with its space, trials and their values at rungs."""
    spec = spec_of(study)
    rungs: dict[int, list[dict[str, Any]]] = {}
    for one in read_rungs(connection, study.study_id, at):
        passed = {"rung": one.rung, "step": one.step, "value": one.value, "attempt": one.attempt, "at": iso(one.at)}
        rungs.setdefault(one.number, []).append(passed)
    return {
        **study_shape(connection, study, now, at),
        "space": [] if spec is None else list(spec.to_json()["space"]),
        "source": study.source,
        "trials": [
            {**trial_shape(one), "rungs": rungs.get(one.number, [])}
            for one in read_trials(connection, study.study_id, at)
        ],
    }
