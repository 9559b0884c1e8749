"""The values of a study's objectives as the runs of its trials report them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.store.metrics.objectives import reported_values
from gputui.store.metrics.queries import Cursor
from gputui.store.studies import TrialRecord
from gputui.studies.decide import ObjectiveCourse, ObjectivePoint
from gputui.studies.spec import StudySpec


@dataclass(slots=True)
class _Followed:
    """How far the metrics of a trial's run were read."""

    run_id: str
    cursor: Cursor = field(default_factory=dict)
    courses: dict[str, ObjectiveCourse] = field(default_factory=dict)


class CourseReader:
    """Reads only what is new since the last look. ``now`` gives UTC unix seconds, the time of values that have none."""

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._connection = connection
        self._now = now
        self._followed: dict[int, _Followed] = {}

    def read(self, spec: StudySpec, trial: TrialRecord) -> dict[str, ObjectiveCourse]:
        """The values of each objective's metric that are stored so far."""
        assert trial.run_id is not None
        followed = self._followed.get(trial.number)
        if followed is None or followed.run_id != trial.run_id:
            followed = self._followed[trial.number] = _Followed(trial.run_id)
        by = spec.pruner.by
        metrics = list(dict.fromkeys(one.metric for one in spec.objectives))
        values, followed.cursor = reported_values(self._connection, trial.run_id, metrics, by, followed.cursor)
        for one in values:
            # Steps count from 0: that with number 9 is the tenth.
            position = one.position if one.position is not None else one.step + 1.0
            point = ObjectivePoint(position, one.step, one.value, one.attempt, one.at or self._now())
            followed.courses.setdefault(one.metric, ObjectiveCourse()).add(point)
        return followed.courses

    def forget(self, number: int) -> None:
        """A trial is over: keep nothing of it."""
        self._followed.pop(number, None)
