"""Earlier runs of a profile as trials that a study's sampler learns from."""

from __future__ import annotations

import json
import math
import sqlite3

from gputui.runs.spec import Scalar
from gputui.store.metrics.objectives import reported_values
from gputui.studies.decide import ObjectiveCourse, ObjectivePoint, objective_value
from gputui.studies.spec import StudySpec


def warm_trials(
    connection: sqlite3.Connection, spec: StudySpec
) -> list[tuple[str, dict[str, Scalar], list[float], float]]:
    """(run, tuned values, a value for each objective, when it ended) of the newest ``warm_start`` runs of the profile
    that succeeded inside the space with the study's fixed values, oldest first. Raises sqlite3.Error."""
    found: list[tuple[str, dict[str, Scalar], list[float], float]] = []
    rows = connection.execute(
        "SELECT run_id, params, ended_at FROM runs WHERE profile = ? AND state = 'succeeded' ORDER BY sequence DESC",
        (spec.profile,),
    )
    for run_id, text, ended_at in rows:
        if len(found) >= spec.warm_start:
            break
        params = json.loads(text)
        is_alike = all(params.get(name) == value for name, value in spec.params.items())
        if not is_alike or not all(one.name in params and one.holds(params[one.name]) for one in spec.space):
            continue
        metrics = list(dict.fromkeys(one.metric for one in spec.objectives))
        courses: dict[str, ObjectiveCourse] = {}
        for value in reported_values(connection, run_id, metrics, "step", {})[0]:
            point = ObjectivePoint(value.step, value.step, value.value, value.attempt, value.at or 0.0)
            courses.setdefault(value.metric, ObjectiveCourse()).add(point)
        values = [objective_value(courses.get(one.metric, ObjectiveCourse()).points, one) for one in spec.objectives]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) == len(values):
            found.append((run_id, {one.name: params[one.name] for one in spec.space}, known, ended_at))
    return found[::-1]
