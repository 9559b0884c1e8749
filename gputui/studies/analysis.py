"""What a study has found so far: its best trial, the front of several objectives, and which parameters mattered. Pure.

Only trials with a value count. Those that were pruned have one, too: that of their last rung, which is worse than what
they would have reached; they are left out wherever values of full runs are compared.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputui.runs.spec import Scalar
from gputui.store.studies import StudyRecord, TrialRecord, TrialState
from gputui.studies.spec import Dimension, Objective, known_study_spec

LEAST_TRIALS = 4
"""Fewer complete trials say nothing about which parameter mattered."""


class Importance(NamedTuple):
    """How much of the objective's ranking one parameter explains: ``share`` from 0 to 1. ``sign`` is +1 where larger
    values of the parameter gave better trials, -1 where smaller ones did, 0 for choices and bends."""

    name: str
    share: float
    sign: int


def counted(trials: Sequence[TrialRecord]) -> Mapping[TrialState, int]:
    """How many trials are in each state."""
    return Counter(one.state for one in trials)


def complete(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that ran to their end with a finite value, and keep the constraints."""
    return [
        one
        for one in trials
        if one.state is TrialState.COMPLETE
        and one.values
        and all(math.isfinite(value) for value in one.values)
        and all(value <= 0 for value in one.constraints)
    ]


def ranked(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The complete trials, best first, the earlier of equals first; of several objectives only the Pareto front."""
    if len(objectives) > 1:
        return pareto_front(trials, objectives)
    sign = 1.0 if objectives[0].direction == "minimize" else -1.0
    return sorted(complete(trials), key=lambda one: (sign * one.values[0], one.number))


def best_trials(study: StudyRecord, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The complete trials of a stored study as `ranked`; none where this gputui cannot read the study."""
    spec = known_study_spec(study)
    return [] if spec is None else ranked(trials, spec.objectives)


def best_trial(trials: Sequence[TrialRecord], objective: Objective) -> TrialRecord | None:
    """The complete trial with the best value of one objective, the earlier of equals; None where there is none."""
    return next(iter(ranked(trials, (objective,))), None)


def best_so_far(trials: Sequence[TrialRecord], objective: Objective) -> list[tuple[int, float]]:
    """By the order of their ends: how many trials were over, and the best value then."""
    ended = sorted((one for one in trials if one.ended_at is not None), key=lambda one: (one.ended_at, one.number))
    usable = {one.number for one in complete(trials)}
    found: list[tuple[int, float]] = []
    best: float | None = None
    for place, one in enumerate(ended, 1):
        if one.number in usable and (best is None or objective.is_better(one.values[0], best)):
            best = one.values[0]
        if best is not None:
            found.append((place, best))
    return found


def pareto_front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The complete trials that no other one beats in every objective, in the order of the first one's values."""
    known = [one for one in complete(trials) if len(one.values) == len(objectives)]

    def loss(one: TrialRecord) -> tuple[float, ...]:
        pairs = zip(one.values, objectives, strict=True)
        return tuple(value if objective.direction == "minimize" else -value for value, objective in pairs)

    losses = {one.number: loss(one) for one in known}

    def is_beaten(one: TrialRecord) -> bool:
        mine = losses[one.number]
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in losses.values())

    return sorted((one for one in known if not is_beaten(one)), key=lambda one: losses[one.number])


def importances(
    trials: Sequence[TrialRecord], space: Sequence[Dimension], objective: Objective
) -> list[Importance] | None:
    """The tuned parameters, what explains most of the ranking first; None where too few trials are complete.

    ``share`` is the correlation ratio (eta squared) of the values' ranks over groups of the parameter's values: the
    choices themselves, or thirds of a range. Ranks keep one diverged trial from deciding, and thirds see an optimum in
    the middle, which a correlation does not. The share that equally many groups explain by chance, (groups - 1) /
    (trials - 1), is taken off.
    """
    usable = complete(trials)
    if len(usable) < LEAST_TRIALS:
        return None
    ranks = _ranks([one.values[0] if objective.direction == "maximize" else -one.values[0] for one in usable])
    found = []
    for dimension in space:
        values = [one.params.get(dimension.name) for one in usable]
        groups, sign = _groups(values, ranks, is_choice=dimension.kind == "choice")
        found.append(Importance(dimension.name, _explained(groups), sign))
    return sorted(found, key=lambda one: -one.share)


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value, equal ones sharing the mean of theirs."""
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
    """The ranks by group of the parameter's values, and the sign of a trend that holds over all groups."""
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
