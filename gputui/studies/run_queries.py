"""Queries of a study about the runs of its trials, their values, and free GPUs."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gputui.runs.spec import RunSpec, Scalar
from gputui.store.gpu_use import peak_bytes, study_peaks
from gputui.store.metrics.queries import latest, reported_values
from gputui.store.metrics.stored_lines import Cursor
from gputui.store.run_states import RunState
from gputui.store.studies import TrialRecord
from gputui.studies import decide
from gputui.studies.decide import RunEnd
from gputui.studies.rungs import ObjectiveCurve, ObjectivePoint, objective_value
from gputui.studies.spec import StudySpec

STEP_METRIC = "step_time"


def run_end(connection: sqlite3.Connection, run_id: str | None) -> RunEnd | None:
    """The end of a run, None while it is active. A removed run counts as stopped."""
    row = connection.execute(
        "SELECT state, reason, EXISTS (SELECT 1 FROM attempts AS a WHERE a.run_id = runs.run_id "
        "AND a.last_step IS NOT NULL), json_valid(spec) AND spec ->> '$.checkpoints' IS NOT NULL "
        "FROM runs WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    if row is None:
        return RunEnd(RunState.STOPPED, "its run was removed")
    state = RunState(row[0])
    if not state.is_over:
        return None
    incident = None
    if state is not RunState.SUCCEEDED:
        incident = last_incident(connection, run_id)
    kind = None if incident is None else incident[0]
    return RunEnd(state, row[1], kind, bool(row[2]), bool(row[3]))


def last_incident(connection: sqlite3.Connection, run_id: str | None) -> tuple[str, str] | None:
    """The kind and fingerprint of a run's last incident."""
    row: tuple[str, str] | None = connection.execute(
        "SELECT kind, fingerprint FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run_id,)
    ).fetchone()
    return row


def has_stepped(connection: sqlite3.Connection, run_id: str | None) -> bool:
    query = "SELECT 1 FROM attempts WHERE run_id = ? AND last_step IS NOT NULL"
    return connection.execute(query, (run_id,)).fetchone() is not None


def objective_values(curves: Mapping[str, ObjectiveCurve], spec: StudySpec) -> list[float | None]:
    """The value of each objective that counts; None where no line reports it."""
    return [
        objective_value(curves.get(objective.metric, ObjectiveCurve()).points, objective)
        for objective in spec.objectives
    ]


def constraint_values(connection: sqlite3.Connection, spec: StudySpec, run_id: str | None) -> tuple[float, ...]:
    """The violation of each constraint by a run; see `decide.constraint_values`."""
    if not spec.constraints.count or run_id is None:
        return ()
    attempts = connection.execute("SELECT number FROM attempts WHERE run_id = ?", (run_id,)).fetchall()
    peaks = [peak for (number,) in attempts if (peak := peak_bytes(connection, run_id, number)) is not None]
    return decide.constraint_values(spec, max(peaks, default=None), latest(connection, run_id).get(STEP_METRIC))


def trial_slots(connection: sqlite3.Connection, spec: StudySpec, study_id: str, base: RunSpec) -> int:
    """The number of trials that may run at the same time; see `decide.room_for`. ``base`` is the
    specification of their runs."""
    gpus, leased, queued = connection.execute(
        "SELECT (SELECT count(*) FROM gpus WHERE present AND NOT is_excluded "
        "AND uuid NOT IN (SELECT gpu_uuid FROM gpu_quarantine)), "
        "(SELECT count(DISTINCT l.gpu_uuid) FROM leases AS l JOIN runs AS r USING (run_id) "
        "WHERE r.study_id IS NOT ?1), (SELECT coalesce(sum(coalesce(gpu_count, max(spec ->> '$.gpus.count', "
        "json_array_length(spec, '$.gpus.uuids')))), 0) FROM runs "
        "WHERE state = 'queued' AND json_valid(spec) AND study_id IS NOT ?1 AND priority >= ?2)",
        (study_id, spec.priority),
    ).fetchone()
    share = 1
    if spec.trials_per_gpu > 1:
        peaks = study_peaks(connection, study_id)
        sizes = connection.execute("SELECT name, facts ->> '$.memory_total_bytes' FROM gpus WHERE present")
        fitting = (decide.trials_on_gpu(spec.trials_per_gpu, total, 0, peaks.get(name)) for name, total in sizes)
        share = max(fitting, default=1)
    return decide.room_for(
        spec, gpus, leased + queued, cores=len(os.sched_getaffinity(0)), ranks=base.nproc, share=share
    )


class WarmTrial(NamedTuple):
    """An earlier run as a trial that the sampler learns from.

    Attributes:
        run_id: the run.
        params: its tuned values.
        values: a value per objective.
        ended_at: when it ended, in UTC unix seconds.
    """

    run_id: str
    params: dict[str, Scalar]
    values: list[float]
    ended_at: float


def warm_trials(connection: sqlite3.Connection, spec: StudySpec, study_id: str) -> list[WarmTrial]:
    """Read the newest ``warm_start`` runs of the profile outside this study that succeeded inside
    the space with the study's fixed values, oldest first. Raises sqlite3.Error."""
    trials: list[WarmTrial] = []
    rows = connection.execute(
        "SELECT run_id, params, ended_at FROM runs WHERE profile = ? AND state = 'succeeded' AND study_id IS NOT ? "
        "ORDER BY sequence DESC",
        (spec.profile, study_id),
    )
    for run_id, text, ended_at in rows:
        if len(trials) >= spec.warm_start:
            break
        params = json.loads(text)
        tuned = _tuned_values(spec, params)
        if tuned is None:
            continue
        values = objective_values(_final_curves(connection, spec, run_id), spec)
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if len(finite) == len(values):
            trials.append(WarmTrial(run_id, tuned, finite, ended_at))
    return trials[::-1]


def _tuned_values(spec: StudySpec, params: Mapping[str, Scalar]) -> dict[str, Scalar] | None:
    """A run's values of the study's parameters; None outside the space, or where fixed values differ."""
    if any(params.get(name) != value for name, value in spec.params.items()):
        return None
    tuned = {}
    for dimension in spec.dimensions_of(params):
        if dimension.name not in params or not dimension.holds(params[dimension.name]):
            return None
        tuned[dimension.name] = params[dimension.name]
    return tuned


def _final_curves(connection: sqlite3.Connection, spec: StudySpec, run_id: str) -> dict[str, ObjectiveCurve]:
    """The values by step of each objective's metric that an ended run has reported."""
    curves: dict[str, ObjectiveCurve] = {}
    reports, _ = reported_values(connection, run_id, _metrics_of(spec), "step", {})
    for report in reports:
        point = ObjectivePoint(report.step, report.step, report.value, report.attempt)
        curves.setdefault(report.metric, ObjectiveCurve()).add(point)
    return curves


def _metrics_of(spec: StudySpec) -> list[str]:
    """The metrics of the objectives, each once."""
    return list(dict.fromkeys(objective.metric for objective in spec.objectives))


@dataclass(slots=True)
class _RunProgress:
    """The values of a run, and how far its metrics have been read."""

    run_id: str
    cursor: Cursor = field(default_factory=dict)
    curves: dict[str, ObjectiveCurve] = field(default_factory=dict)


class ObjectiveReader:
    """Reads values incrementally."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._runs: dict[int, _RunProgress] = {}

    def read(self, spec: StudySpec, trial: TrialRecord) -> dict[str, ObjectiveCurve]:
        """The stored values of each objective's metric."""
        assert trial.run_id is not None
        progress = self._runs.get(trial.number)
        if progress is None or progress.run_id != trial.run_id:
            progress = self._runs[trial.number] = _RunProgress(trial.run_id)
        by = spec.pruner.by
        metrics = _metrics_of(spec)
        reports, progress.cursor = reported_values(self._connection, trial.run_id, metrics, by, progress.cursor)
        for report in reports:
            # Steps count from 0: step 9 is the tenth.
            position = report.step + 1.0
            if report.position is not None:
                position = report.position
            point = ObjectivePoint(position, report.step, report.value, report.attempt)
            progress.curves.setdefault(report.metric, ObjectiveCurve()).add(point)
        return progress.curves

    def forget(self, number: int) -> None:
        """Drop the values of a trial that is over."""
        self._runs.pop(number, None)
