"""The results of a study: its best trial and the Pareto front. Pure.

Only trials with a value count. The value of a pruned trial is that of its last rung, which is worse
than its final value would be, so pruned trials are left out wherever values of full runs are
compared.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gputui.store.studies import TrialRecord, TrialState
from gputui.studies.spec import Objective


def state_counts(trials: Sequence[TrialRecord]) -> Mapping[TrialState, int]:
    """The number of trials in each state."""
    return Counter(trial.state for trial in trials)


def complete_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that ran to their end with a finite value within the constraints."""
    return [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE
        and trial.values
        and all(math.isfinite(value) for value in trial.values)
        and all(value <= 0 for value in trial.constraints)
    ]


def sorted_by_end(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that are over, as they ended."""
    ended = (trial for trial in trials if trial.ended_at is not None)
    return sorted(ended, key=lambda trial: (trial.ended_at, trial.number))


def losses(trial: TrialRecord, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """The values of a trial, smaller ones being better."""
    return tuple(objective.sign * value for value, objective in zip(trial.values, objectives, strict=False))


def rank_trials(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective], most: int | None = None
) -> list[TrialRecord]:
    """The ``most`` best of the complete trials, or all: the best first, the earlier of equals; with
    several objectives the whole Pareto front."""
    if len(objectives) > 1:
        return pareto_front(trials, objectives)
    (objective,) = objectives
    return sorted(complete_trials(trials), key=lambda trial: (objective.sign * trial.values[0], trial.number))[:most]


def best_trial(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> TrialRecord | None:
    """The best of the complete trials; None without one, and with several objectives, which have no
    best trial."""
    if len(objectives) == 1:
        return next(iter(rank_trials(trials, objectives)), None)
    return None


def split_by_objective(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> list[tuple[Objective, list[TrialRecord]]]:
    """Each objective, with the trials as if they had no other."""
    return [
        (objective, [replace(trial, values=trial.values[index : index + 1]) for trial in trials])
        for index, objective in enumerate(objectives)
    ]


def best_so_far(trials: Sequence[TrialRecord], objective: Objective) -> list[tuple[int, float]]:
    """The best value after each trial that ended, with the number of trials until then."""
    usable = {trial.number for trial in complete_trials(trials)}
    steps: list[tuple[int, float]] = []
    best: float | None = None
    for ended, trial in enumerate(sorted_by_end(trials), 1):
        if trial.number in usable and (best is None or objective.is_better(trial.values[0], best)):
            best = trial.values[0]
        if best is not None:
            steps.append((ended, best))
    return steps


def pareto_front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The complete trials that no other trial beats in every objective, by the value of the first
    one."""
    candidates = [trial for trial in complete_trials(trials) if len(trial.values) == len(objectives)]
    losses_by_trial = {trial.number: losses(trial, objectives) for trial in candidates}

    def is_dominated(mine: tuple[float, ...]) -> bool:
        return any(rival != mine and all(map(operator.le, rival, mine)) for rival in losses_by_trial.values())

    front = [trial for trial in candidates if not is_dominated(losses_by_trial[trial.number])]
    return sorted(front, key=lambda trial: losses_by_trial[trial.number])
