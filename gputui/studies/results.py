"""What a study has measured so far, for its report and its page."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gputui.store.studies import (
    RungValue,
    StudyRecord,
    TrialRecord,
    read_trials,
    rungs_by_trial,
    study_gpu_hours,
    study_wall_seconds,
)
from gputui.studies.spec import StudySpec, study_spec


class StudyResults(Struct, frozen=True):
    """A study with its trials.

    Attributes:
        trials: all trials, in the order of their numbers.
        rungs: the values of each trial at its rungs, by the trial's number.
        gpu_hours: the GPU-hours of all of its runs.
        running_seconds: how long it ran, without its pauses.
    """

    study: StudyRecord
    spec: StudySpec
    trials: Sequence[TrialRecord]
    rungs: Mapping[int, Sequence[RungValue]]
    gpu_hours: float
    running_seconds: float


def read_results(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> StudyResults:
    """The results of a study now, or at the past moment ``at`` (UTC unix seconds). Raises sqlite3.Error."""
    study_id = study.study_id
    end_at = now if at is None else at
    return StudyResults(
        study,
        study_spec(study),
        tuple(read_trials(connection, study_id, at)),
        rungs=rungs_by_trial(connection, study_id, at),
        gpu_hours=study_gpu_hours(connection, study_id, end_at),
        running_seconds=study_wall_seconds(connection, study_id, end_at),
    )
