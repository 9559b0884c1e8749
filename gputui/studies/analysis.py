"""The results of a study: its best trial, the Pareto front, and the importance of parameters. Pure.

Only trials with a value count. The value of a pruned trial is that of its last rung, which is worse than its final
value would be, so pruned trials are left out wherever values of full runs are compared.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputui.runs.spec import Scalar
from gputui.store.studies import TrialRecord, TrialState
from gputui.studies.spec import Dimension, Objective

MIN_TRIALS = 4
"""Fewer complete trials say nothing about importance."""


class Importance(NamedTuple):
    """The share (0 to 1) of the objective's ranking that a parameter explains. ``sign`` is +1 if larger values of the
    parameter are better, -1 if smaller ones are, 0 for choices and trends that are not monotonic."""

    name: str
    share: float
    sign: int

    @property
    def trend(self) -> str:
        """Which values are better, in words; empty where the parameter explains nothing."""
        return {1: "larger is better", -1: "smaller is better"}.get(self.sign, "") if self.share else ""


def counted(trials: Sequence[TrialRecord]) -> Mapping[TrialState, int]:
    """The number of trials in each state."""
    return Counter(trial.state for trial in trials)


def complete(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that ran to their end with a finite value within the constraints."""
    return [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE
        and trial.values
        and all(math.isfinite(value) for value in trial.values)
        and all(value <= 0 for value in trial.constraints)
    ]


def ranked(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The complete trials, best first, earlier ones before equal ones; with several objectives only the Pareto
    front."""
    if len(objectives) > 1:
        return pareto_front(trials, objectives)
    sign = 1.0 if objectives[0].direction == "minimize" else -1.0
    return sorted(complete(trials), key=lambda trial: (sign * trial.values[0], trial.number))


def best_trials(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The best of the complete trials; with several objectives the whole Pareto front."""
    found = ranked(trials, objectives)
    return found if len(objectives) > 1 else found[:1]


def best_trial(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> TrialRecord | None:
    """The best of the complete trials. None without one, and with several objectives, which have no best trial."""
    return next(iter(ranked(trials, objectives)), None) if len(objectives) == 1 else None


def by_objective(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> list[tuple[Objective, list[TrialRecord]]]:
    """Each objective, with the trials as if they had no other."""
    return [
        (objective, [replace(trial, values=trial.values[place : place + 1]) for trial in trials])
        for place, objective in enumerate(objectives)
    ]


def best_so_far(trials: Sequence[TrialRecord], objective: Objective) -> list[tuple[int, float]]:
    """The best value after each trial that ended, with the number of trials until then."""
    ended = sorted(
        (trial for trial in trials if trial.ended_at is not None), key=lambda trial: (trial.ended_at, trial.number)
    )
    usable = {trial.number for trial in complete(trials)}
    found: list[tuple[int, float]] = []
    best: float | None = None
    for place, trial in enumerate(ended, 1):
        if trial.number in usable and (best is None or objective.is_better(trial.values[0], best)):
            best = trial.values[0]
        if best is not None:
            found.append((place, best))
    return found


def pareto_front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The complete trials that no other trial beats in every objective, by the value of the first one."""
    known = [trial for trial in complete(trials) if len(trial.values) == len(objectives)]

    def loss(trial: TrialRecord) -> tuple[float, ...]:
        pairs = zip(trial.values, objectives, strict=True)
        return tuple(value if objective.direction == "minimize" else -value for value, objective in pairs)

    losses = {trial.number: loss(trial) for trial in known}

    def is_dominated(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in losses.values())

    front = [trial for trial in known if not is_dominated(losses[trial.number])]
    return sorted(front, key=lambda trial: losses[trial.number])


def importances(
    trials: Sequence[TrialRecord], space: Sequence[Dimension], objective: Objective
) -> list[Importance] | None:
    """The tuned parameters, most important first; None if too few trials are complete.

    ``share`` is the correlation ratio (eta squared) of the values' ranks over groups of the parameter's values: the
    choices, or thirds of a range. Ranks limit the influence of a diverged trial, and thirds detect an optimum in the
    middle, which a correlation misses. The share that as many groups explain by chance, (groups - 1) / (trials - 1), is
    subtracted.
    """
    usable = complete(trials)
    if len(usable) < MIN_TRIALS:
        return None
    ranks = _ranks([trial.values[0] if objective.direction == "maximize" else -trial.values[0] for trial in usable])
    found = []
    for dimension in space:
        values = [trial.params.get(dimension.name) for trial in usable]
        groups, sign = _groups(values, ranks, is_choice=dimension.kind == "choice")
        found.append(Importance(dimension.name, _explained(groups), sign))
    return sorted(found, key=lambda importance: -importance.share)


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share their mean rank."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranks[place] = (start + end) / 2
        start = end + 1
    return ranks


def _groups(
    values: Sequence[Scalar | None], ranks: Sequence[float], *, is_choice: bool
) -> tuple[list[list[float]], int]:
    """The ranks by group of the parameter's values, and the sign of a trend over all groups."""
    numbers = [float(value) if isinstance(value, (int, float)) else None for value in values]
    known = [(number, rank) for number, rank in zip(numbers, ranks, strict=True) if number is not None]
    if is_choice or len(known) < len(ranks):
        by_value: dict[str, list[float]] = {}
        for value, rank in zip(values, ranks, strict=True):
            by_value.setdefault(repr(value), []).append(rank)
        return list(by_value.values()), 0
    places = _ranks([number for number, _ in known])
    thirds: list[list[float]] = [[], [], []]
    for place, (_, rank) in zip(places, known, strict=True):
        thirds[min(2, int(place * 3 / len(known)))].append(rank)
    groups = [group for group in thirds if group]
    means = [sum(group) / len(group) for group in groups]
    rising = all(a < b for a, b in itertools.pairwise(means))
    falling = all(a > b for a, b in itertools.pairwise(means))
    return groups, (rising - falling) if len(groups) > 1 else 0


def _explained(groups: Sequence[Sequence[float]]) -> float:
    count = sum(map(len, groups))
    mean = sum(map(sum, groups)) / count
    total = sum((rank - mean) ** 2 for group in groups for rank in group)
    if not total or len(groups) < 2 or len(groups) >= count:
        return 0.0
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups)
    by_chance = (len(groups) - 1) / (count - 1)
    return max(0.0, (between / total - by_chance) / (1 - by_chance))
