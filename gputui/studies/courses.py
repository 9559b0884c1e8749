"""The values of a study's objectives in the runs of its trials."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.store.metrics.queries import Cursor, reported_values
from gputui.store.studies import TrialRecord
from gputui.studies.decide import ObjectiveCourse, ObjectivePoint
from gputui.studies.spec import StudySpec


@dataclass(slots=True)
class _RunProgress:
    """The values of a run, and how far its metrics have been read."""

    run_id: str
    cursor: Cursor = field(default_factory=dict)
    courses: dict[str, ObjectiveCourse] = field(default_factory=dict)


class CourseReader:
    """Reads values incrementally. ``now`` gives UTC unix seconds, for values without a time."""

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._connection = connection
        self._now = now
        self._runs: dict[int, _RunProgress] = {}

    def read(self, spec: StudySpec, trial: TrialRecord) -> dict[str, ObjectiveCourse]:
        """The stored values of each objective's metric."""
        assert trial.run_id is not None
        progress = self._runs.get(trial.number)
        if progress is None or progress.run_id != trial.run_id:
            progress = self._runs[trial.number] = _RunProgress(trial.run_id)
        by = spec.pruner.by
        metrics = list(dict.fromkeys(objective.metric for objective in spec.objectives))
        values, progress.cursor = reported_values(self._connection, trial.run_id, metrics, by, progress.cursor)
        for value in values:
            # Steps count from 0: step 9 is the tenth.
            position = value.position if value.position is not None else value.step + 1.0
            point = ObjectivePoint(position, value.step, value.value, value.attempt, value.at or self._now())
            progress.courses.setdefault(value.metric, ObjectiveCourse()).add(point)
        return progress.courses

    def forget(self, number: int) -> None:
        """Drop the values of a trial that is over."""
        self._runs.pop(number, None)
