"""A study as an Optuna storage in SQLite, for optuna-dashboard and whoever reads Optuna studies."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path

from gputui.store.studies import StudyRecord, read_rungs, read_trials
from gputui.studies.sampling import OptunaMirror
from gputui.studies.spec import StudySpec


class ExistingFileError(Exception):
    """The target exists; nothing was written."""


def export_study(connection: sqlite3.Connection, study: StudyRecord, spec: StudySpec, target: Path) -> int:
    """Write all trials to a new file; how many. Raises ExistingFileError, ImportError without Optuna, OSError."""
    import optuna

    if target.exists():
        raise ExistingFileError(f"{target} exists; choose another name")
    trials = read_trials(connection, study.study_id)
    mirror = OptunaMirror(spec, study.study_id, {})
    mirror.sync(trials, read_rungs(connection, study.study_id))
    storage = optuna.storages.RDBStorage(f"sqlite:///{target}")
    exported = optuna.create_study(
        study_name=study.study_id, directions=[one.direction for one in spec.objectives], storage=storage
    )
    exported.set_metric_names([one.metric for one in spec.objectives])
    exported.set_user_attr("gputui:profile", study.profile)
    for frozen, trial in zip(mirror.study.get_trials(deepcopy=False), trials, strict=True):
        frozen.datetime_start = datetime.fromtimestamp(trial.created_at)
        if frozen.state.is_finished() and trial.ended_at is not None:
            frozen.datetime_complete = datetime.fromtimestamp(trial.ended_at)
        facts = {"run": trial.run_id, "state": trial.state.value, "reason": trial.reason, "origin": trial.origin}
        for name, value in facts.items():
            frozen.set_user_attr(f"gputui:{name}", value)
        exported.add_trial(frozen)
    storage.engine.dispose()
    return len(trials)
