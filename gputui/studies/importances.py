"""Importances of parameters, by Optuna's PED-ANOVA evaluator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from gputui.store.studies import OUTSIDE, Importance, TrialRecord
from gputui.studies.analysis import complete_trials
from gputui.studies.spec import StudySpec

MIN_TRIALS = 8
"""Fewer complete trials say nothing about importance."""
BEST_SHARE = 0.25
"""The best quarter is compared with all. Of 40 planted trials whose value a choice decides, that
finds the choice in 12 of 12 studies; Optuna's default, the best tenth, in 6."""


def evaluate_importances(trials: Sequence[TrialRecord], spec: StudySpec) -> list[Importance]:
    """The share of each tuned parameter in what makes the best trials of each objective differ from
    all, most important first; empty while too few are complete."""
    # Trials of other processes may have values outside the space.
    launched = (trial for trial in complete_trials(trials) if trial.origin != OUTSIDE)
    measured = [trial for trial in launched if len(trial.values) == len(spec.objectives)]
    if len(measured) < MIN_TRIALS:
        return []
    evaluator, study = _evaluator_and_study(measured, spec)
    shares: list[Importance] = []
    for index, objective in enumerate(spec.objectives):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = evaluator.evaluate(
                study, target=lambda trial, at=index, sign=objective.sign: sign * trial.values[at]
            )
        total = math.fsum(weights.values()) or 1.0
        shares += [Importance(objective.metric, name, weight / total) for name, weight in weights.items()]
    return shares


def _evaluator_and_study(trials: Sequence[TrialRecord], spec: StudySpec) -> tuple[Any, Any]:
    """The evaluator, and the trials in memory."""
    from gputui.studies.samplers import hide_modules, make_distribution

    # Other evaluators use scikit-learn.
    with hide_modules("sklearn", "scipy.stats"):
        from optuna import create_study, logging
        from optuna.importance import PedAnovaImportanceEvaluator
        from optuna.samplers import RandomSampler
        from optuna.trial import create_trial
    logging.set_verbosity(logging.ERROR)
    distributions = {dimension.name: make_distribution(dimension) for dimension in spec.space}
    study = create_study(directions=[objective.direction for objective in spec.objectives], sampler=RandomSampler())
    for trial in trials:
        params = {name: value for name, value in trial.params.items() if name in distributions}
        applying = {name: distributions[name] for name in params}
        study.add_trial(create_trial(values=list(trial.values), params=params, distributions=applying))
    return PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE), study
