"""Studies and trials as rows of tables."""

from __future__ import annotations

import sqlite3

from gputui.core import units
from gputui.store.runs import read_runs
from gputui.store.studies import StudyRecord, TrialRecord, TrialState, read_trials, study_wall_seconds
from gputui.studies.analysis import ranked
from gputui.studies.spec import study_spec


def study_row(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> tuple[str, ...]:
    """Id, state, trials, pruned ones, best value, time and reason of a study in a list."""
    spec = study_spec(study)
    trials = read_trials(connection, study.study_id, at)
    over_count = sum(trial.state.is_over for trial in trials)
    pruned_count = sum(trial.state is TrialState.PRUNED for trial in trials)
    best = ranked(trials, spec.objectives)
    value = units.UNKNOWN
    if len(spec.objectives) > 1:
        value = f"Pareto front: {units.count_of(len(best), 'trial')}"
    elif best:
        value = units.metric_value(best[0].value)
    progress = str(over_count)
    if spec.wanted_trials is not None:
        # Points that a person added, reruns and earlier runs count beyond the budget.
        progress += f"/{max(spec.wanted_trials, len(trials))}"
    duration = units.duration(study_wall_seconds(connection, study.study_id, now))
    return study.study_id, study.state, progress, str(pruned_count), value, duration, study.remark


def waiting_trials(connection: sqlite3.Connection, study_id: str, now: float) -> dict[str, str]:
    """What each run of a study that waits in a queue waits for, by its id."""
    # Lists of studies need no words of runs.
    from gputui.ui.views.run_words import waiting_words

    runs = (run for run in read_runs(connection, active_only=True) if run.study_id == study_id)
    return {run.run_id: reason for run in runs if (reason := waiting_words(run, now))}


def trial_row(trial: TrialRecord, *, is_best: bool, waits_for: str | None = None) -> tuple[str, ...]:
    """Number, run, state, rung, values, point and a remark of a trial in a list. ``waits_for`` is
    what its run waits for in a queue."""
    # Lists of studies need no profiles.
    from gputui.studies.launch import point_words

    origins = {
        "enqueued": "by hand",
        "warm": "an earlier run",
        "rerun": f"trial {trial.parent} again, to the end",
        "outside": "run by another process",
    }
    remarks = []
    if trial.origin in origins:
        remarks.append(origins[trial.origin])
    if trial.generation is not None:
        parent = "itself" if trial.parent is None else f"trial {trial.parent}"
        remarks.append(f"from {parent} after milestone {trial.generation}")
    if trial.request == "keep" and not trial.state.is_over:
        remarks.append("kept")
    if waits_for:
        remarks.append(waits_for)
    if trial.reason:
        remarks.append(trial.reason)
    mark = "★" if is_best else " "
    state = trial.state.word
    if waits_for and trial.state is TrialState.RUNNING:
        state = "waiting"
    rung = units.UNKNOWN if trial.rung is None else str(trial.rung)
    return (
        f"{mark} {trial.number}",
        trial.run_id or units.UNKNOWN,
        state,
        rung,
        ", ".join(map(units.metric_value, trial.values or (trial.shown_value,))),
        point_words(trial.params),
        "; ".join(remarks),
    )
