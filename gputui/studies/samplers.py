"""Optuna's samplers, pruners and distributions of a study."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.trial import FrozenTrial, TrialState

from gputui.studies.spec import Dimension, StudySpec

_MIN_SOLUTIONS = 10
"""CMA-ES starts from the best tenth of these."""


def make_distribution(dimension: Dimension) -> BaseDistribution:
    """The values of a dimension."""
    if dimension.kind == "choice":
        return CategoricalDistribution(dimension.choices)
    low, high = dimension.bounds
    if dimension.kind == "int":
        return IntDistribution(int(low), int(high), log=dimension.log, step=int(dimension.step or 1))
    return FloatDistribution(low, high, log=dimension.log, step=dimension.step)


def make_pruner(spec: StudySpec) -> BasePruner:
    """The pruner, whose steps are rungs."""
    pruners = optuna.pruners
    chosen = spec.pruner
    match chosen.kind:
        case "median":
            return pruners.MedianPruner(n_startup_trials=chosen.startup, n_warmup_steps=chosen.warmup)
        case "percentile":
            return pruners.PercentilePruner(
                chosen.percentile, n_startup_trials=chosen.startup, n_warmup_steps=chosen.warmup
            )
        case "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=chosen.eta)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=chosen.rungs, reduction_factor=chosen.eta)
        case "patient":
            return pruners.PatientPruner(None, patience=chosen.patience)
        case _:
            return pruners.NopPruner()


def make_sampler(spec: StudySpec, number: int) -> BaseSampler:
    """A sampler seeded only by the study's seed and the trial's number, so that a restarted process
    draws the same point."""
    samplers = optuna.samplers
    kind = spec.sampler.kind
    seed = _seed(spec, number)
    startup: dict[str, Any] = {}
    if spec.sampler.startup is not None:
        startup = {"n_startup_trials": spec.sampler.startup}
    match kind:
        case "tpe":
            return samplers.TPESampler(seed=seed, **startup)
        case "gp":
            return samplers.GPSampler(seed=seed, **startup)
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed)
        case "qmc":
            independent = samplers.RandomSampler(seed=seed)
            return samplers.QMCSampler(
                seed=spec.seed, scramble=True, independent_sampler=independent, warn_independent_sampling=False
            )
        case _:
            return samplers.RandomSampler(seed=seed)


def _seed(spec: StudySpec, number: int) -> int:
    digest = hashlib.sha256(f"{spec.seed}\n{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def make_cma_es(spec: StudySpec, trials: Sequence[FrozenTrial]) -> CmaEsSampler:
    """CMA-ES for one process, from the solutions among ``trials``."""
    # Only its variants with margin use scipy.stats.
    with hide_modules("scipy.stats"):
        importlib.import_module("cmaes")
    numbers = {
        dimension.name: make_distribution(dimension)
        for dimension in spec.space
        if dimension.kind != "choice" and not dimension.when
    }
    solutions = [
        optuna.trial.create_trial(
            params={name: trial.params[name] for name in numbers}, distributions=numbers, value=trial.value
        )
        for trial in trials
        if trial.state is TrialState.COMPLETE and numbers.keys() <= trial.params.keys()
    ]
    startup: dict[str, Any] = {}
    if spec.sampler.startup is not None:
        startup["n_startup_trials"] = spec.sampler.startup
    if len(solutions) >= _MIN_SOLUTIONS:
        startup["source_trials"] = solutions
    cmaes = _CmaEs(
        seed=_seed(spec, len(trials)),
        warn_independent_sampling=False,
        independent_sampler=optuna.samplers.RandomSampler(seed=spec.seed + len(trials)),
        **startup,
    )
    # Optuna marks the trials of a generation with attributes of this prefix. Those that an earlier
    # process marked belong to an optimizer that is gone: counted with the new one's, they would end
    # its first generation early.
    cmaes._attr_prefix = f"cma{len(trials)}:"
    return cmaes


class _CmaEs(CmaEsSampler):
    """CMA-ES with its optimizer in memory.

    Optuna pickles the optimizer into attributes of trials and loads it from there for each point.
    Whoever can write to the journal could then run code here, so nothing is unpickled.
    """

    _optimizer: Any = None

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        # Called before each point. None makes Optuna begin one with `_init_optimizer`.
        return self._optimizer

    def _init_optimizer(self, *arguments: Any, **options: Any) -> Any:
        # Called once; Optuna then updates this same object with the values of each generation.
        self._optimizer = super()._init_optimizer(*arguments, **options)
        return self._optimizer

    def _split_optimizer_str(self, optimizer_str: str) -> Mapping[str, str]:  # type: ignore[override]
        # Called with the pickle as text, to store it in pieces: there are none.
        return {}


@contextmanager
def hide_modules(*names: str) -> Iterator[None]:
    """Import other modules without these, which take seconds and most of a process's memory."""
    absent: Any = None
    unknown = [name for name in names if sys.modules.setdefault(name, absent) is None]
    try:
        yield
    finally:
        for name in unknown:
            del sys.modules[name]
