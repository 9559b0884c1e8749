"""Export a study as an Optuna storage in SQLite, for optuna-dashboard and other readers of Optuna studies."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gputui.store.studies import StudyRecord, TrialRecord, read_rungs, read_trials
from gputui.studies.sampling import OptunaMirror
from gputui.studies.spec import StudySpec


class StudyExportError(Exception):
    """The target exists or cannot be written; the text says so in one line. No part of it is left."""


def export_study(connection: sqlite3.Connection, study: StudyRecord, spec: StudySpec, target: Path) -> int:
    """Write all trials to a new file; returns their number. Raises StudyExportError, ImportError without Optuna."""
    trials = read_trials(connection, study.study_id)
    mirror = OptunaMirror(spec, study.study_id, {})
    mirror.sync(trials, read_rungs(connection, study.study_id))
    from sqlalchemy.exc import SQLAlchemyError

    try:
        target.open("xb").close()
    except FileExistsError as error:
        raise StudyExportError(f"{target} exists; choose another name") from error
    except OSError as error:
        raise StudyExportError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        _write(mirror, study, trials, target)
    except SQLAlchemyError as error:
        target.unlink(missing_ok=True)
        raise StudyExportError(f"cannot write {target}: {getattr(error, 'orig', None) or error}") from error
    return len(trials)


def _write(mirror: OptunaMirror, study: StudyRecord, trials: Sequence[TrialRecord], target: Path) -> None:
    import optuna

    spec = mirror.spec
    storage = optuna.storages.RDBStorage(f"sqlite:///{target}")
    exported = optuna.create_study(
        study_name=study.study_id, directions=[objective.direction for objective in spec.objectives], storage=storage
    )
    exported.set_metric_names([objective.metric for objective in spec.objectives])
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
