"""Values of an objective over a trial, and at the rungs of a pruner. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from gputui.studies.spec import Objective, PrunerSpec


class ObjectivePoint(Struct, frozen=True):
    """A value of an objective's metric.

    Attributes:
        position: where it was reported, in the unit of the rungs.
        step: the step that reported it.
        value: the value, which may be NaN or infinite.
        attempt: the attempt of the run that reported it.
    """

    position: float
    step: int
    value: float
    attempt: int


@dataclass(slots=True)
class ObjectiveCurve:
    """The values of one metric over the attempts of a trial. An attempt that begins at an earlier
    position replaces the values behind it."""

    points: list[ObjectivePoint] = field(default_factory=list)

    def add(self, point: ObjectivePoint) -> None:
        if self.points and point.attempt > self.points[-1].attempt:
            while self.points and self.points[-1].position >= point.position:
                self.points.pop()
        self.points.append(point)


def objective_value(points: Sequence[ObjectivePoint], objective: Objective) -> float | None:
    """The value that counts; None without values, the last one if it is not finite (diverged)."""
    values = [point.value for point in points]
    if not values:
        return None
    if objective.over == "last" or not math.isfinite(values[-1]):
        return values[-1]
    if objective.mean_of is not None:
        newest = values[-objective.mean_of :]
        return sum(newest) / len(newest)
    numbers = [value for value in values if not math.isnan(value)]
    if objective.direction == "minimize":
        return min(numbers)
    return max(numbers)


class PassedRung(NamedTuple):
    """The value of a trial at a rung, by the line that passed it.

    Attributes:
        rung: the rung, from 1.
        step: the step of the line.
        value: the value; None if it is not a number.
        attempt: the attempt of the run that reported it.
    """

    rung: int
    step: int
    value: float | None
    attempt: int


def rungs_passed(
    points: Sequence[ObjectivePoint], pruner: PrunerSpec, objective: Objective, *, behind: int
) -> list[PassedRung]:
    """Every rung after ``behind`` that the values have passed, in order. The result does not depend
    on when it is computed."""
    passed: list[PassedRung] = []
    last = rung_passed(points[-1].position, pruner) if points else 0
    index = 0  # of the point that passed the rung
    for rung in range(behind + 1, last + 1):
        while rung_passed(points[index].position, pruner) < rung:
            index += 1
        value = objective_value(points[: index + 1], objective)
        number = None if value is None or math.isnan(value) else value
        passed.append(PassedRung(rung, points[index].step, number, points[index].attempt))
    return passed


def rung_passed(position: float, pruner: PrunerSpec) -> int:
    """The last rung at or before a position, 0 before the first."""
    if not pruner.length:
        return 0
    return min(pruner.rungs, math.floor(position * pruner.rungs / pruner.length + 1e-9))


def pruning_reason(rung: int, value: float, others: Iterable[float], objective: Objective) -> str:
    """The reason of a pruned trial, such as ``pruned at rung 3: 7th of 9``: its rank among those
    that passed the rung."""
    comparable = [rival for rival in others if not math.isnan(rival)]
    rank = 1 + sum(objective.is_better(rival, value) for rival in comparable)
    if rank % 100 in (11, 12, 13):
        suffix = "th"
    else:
        suffix = {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"pruned at rung {rung}: {rank}{suffix} of {len(comparable) + 1}"
