"""Optuna's part of a study: choosing points, and deciding which trials to prune.

The Optuna study lives in memory and mirrors the stored trials, finished and active ones, so that a killed process loses
nothing. Only a study's process imports this module.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from gputui.store.studies import RungValue, TrialRecord, TrialState
from gputui.studies.spec import Dimension, StudySpec

_NEEDS = {"cmaes": ("cmaes",), "qmc": ("scipy",), "gp": ("torch", "scipy")}
"""Libraries that samplers need beside Optuna."""
_MIN_SOLUTIONS = 10
"""CMA-ES starts from the best tenth of these."""
_STATES = {
    TrialState.COMPLETE: "COMPLETE",
    TrialState.PRUNED: "PRUNED",
    TrialState.FAILED: "FAIL",
    TrialState.STOPPED: "FAIL",
}


def install_command() -> str:
    """The command that installs Optuna beside this gputui. A checkout is installed by path, since no published package
    is meant."""
    try:
        origin = json.loads(importlib.metadata.distribution("gputui").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e {shlex.quote(unquote(urlsplit(origin['url']).path) + '[tune]')}"
    return 'pip install "gputui[tune]"'


def missing_library(spec: StudySpec) -> str | None:
    """What the study lacks and the command that installs it, in one line; None if nothing is missing."""
    if not spec.needs_optuna:
        return None
    if importlib.util.find_spec("optuna") is None:
        return f"Optuna is not installed; {install_command()}"
    missing = [name for name in _NEEDS.get(spec.sampler.kind, ()) if importlib.util.find_spec(name) is None]
    return f"the sampler {spec.sampler.kind} needs {missing[0]}; pip install {missing[0]}" if missing else None


class OptunaMirror:
    """The study as Optuna sees it. ``study_id`` is its name there; Hyperband's brackets depend on name and number.

    Raises ImportError without Optuna.
    """

    def __init__(self, spec: StudySpec, study_id: str, remembered: Mapping[str, Any]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._optuna = optuna
        self.spec = spec
        self._distributions = {dimension.name: _distribution(optuna, dimension) for dimension in spec.space}
        self._earlier: list[Any] = []
        self.study = optuna.create_study(
            study_name=study_id,
            directions=[objective.direction for objective in spec.objectives],
            sampler=optuna.samplers.RandomSampler(),
            pruner=_pruner(optuna, spec),
        )
        for key, value in remembered.items():
            self.study._storage.set_study_system_attr(self.study._study_id, key, value)
        self._over: set[int] = set()
        self._rungs: dict[int, int] = {}
        self._sampler: Any = None

    @property
    def size(self) -> int:
        """The number of trials."""
        return len(self.study.get_trials(deepcopy=False))

    def sync(self, trials: Sequence[TrialRecord], rungs: Sequence[RungValue]) -> None:
        """Add new trials, values at rungs (at least those of `unsettled` trials) and verdicts from the store. Known
        ones are ignored."""
        values: dict[int, dict[int, float]] = {}
        for rung_value in rungs:
            if rung_value.value is not None and not math.isnan(rung_value.value):
                values.setdefault(rung_value.number, {})[rung_value.rung] = rung_value.value
        for trial in trials[self.size :]:
            self.study.add_trial(self._frozen(trial, values.get(trial.number, {})))
            self._rungs[trial.number] = max(values.get(trial.number, {}), default=0)
            if trial.state.is_over:
                self._over.add(trial.number)
        for trial in trials:
            if trial.number in self._over:
                continue
            for rung, value in values.get(trial.number, {}).items():
                if rung > self._rungs[trial.number]:
                    self.report(trial.number, rung, value)
            if trial.state.is_over:
                self._tell(trial)

    def unsettled(self, trials: Sequence[TrialRecord]) -> list[int]:
        """The trials that may have values at rungs which the mirror lacks."""
        return [trial.number for trial in trials if trial.number not in self._over]

    def is_outdated(self, trials: Sequence[TrialRecord]) -> bool:
        """Whether a trial that was over continues, which Optuna cannot represent."""
        return any(trial.number in self._over and not trial.state.is_over for trial in trials)

    def report(self, number: int, rung: int, value: float) -> None:
        """Report the value of an active trial at a rung, once per rung."""
        self._trial(number).report(value, rung)
        self._rungs[number] = rung

    def should_prune(self, number: int) -> bool:
        """Whether the pruner would prune the trial, given the reported values."""
        return bool(self._trial(number).should_prune())

    def ask(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """A new point: its parameters, and the sampler's state for the trial and for the study (JSON)."""
        number = self.size
        self.study.sampler = self._sampler_for(number)
        trial = self.study.ask()
        for name, distribution in self._distributions.items():
            trial._suggest(name, distribution)
        self._rungs[number] = 0
        storage = self.study._storage
        of_trial = storage.get_trial_system_attrs(trial._trial_id)
        of_study = storage.get_study_system_attrs(self.study._study_id)
        return dict(trial.params), _storable(of_trial), _storable(of_study)

    def _sampler_for(self, number: int) -> Any:
        """A sampler seeded only by the study's seed and the trial's number, so that a restarted process does not draw
        the same points again."""
        samplers, spec = self._optuna.samplers, self.spec
        digest = hashlib.sha256(f"{spec.seed}\n{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        startup = {} if spec.sampler.startup is None else {"n_startup_trials": spec.sampler.startup}
        match spec.sampler.kind:
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
            case "cmaes":
                # Its state is a pickle, which is unsafe to load: a new process starts from the known solutions.
                if self._sampler is None:
                    _import_cmaes()
                    solutions = self._solutions()
                    self._sampler = samplers.CmaEsSampler(
                        seed=seed,
                        source_trials=solutions if len(solutions) >= _MIN_SOLUTIONS else None,
                        warn_independent_sampling=False,
                        independent_sampler=samplers.RandomSampler(seed=seed),
                        **startup,
                    )
                return self._sampler
            case _:
                return samplers.RandomSampler(seed=seed)

    def _solutions(self) -> list[Any]:
        """The numerical parameters of trials that were complete before this process started."""
        numbers = {
            dimension.name: self._distributions[dimension.name]
            for dimension in self.spec.space
            if dimension.kind != "choice"
        }
        return [
            self._optuna.trial.create_trial(
                params={name: trial.params[name] for name in numbers}, distributions=numbers, value=trial.value
            )
            for trial in self._earlier
            if trial.state.name == "COMPLETE" and numbers.keys() <= trial.params.keys()
        ]

    def _frozen(self, trial: TrialRecord, rungs: Mapping[int, float]) -> Any:
        states = self._optuna.trial.TrialState
        state = states[_state_name(trial)]
        params = {name: value for name, value in trial.params.items() if name in self._distributions}
        frozen = self._optuna.trial.create_trial(
            state=state,
            params=params,
            distributions={name: self._distributions[name] for name in params},
            values=list(trial.values) if state is states.COMPLETE else None,
            intermediate_values=dict(rungs) if trial.state is not TrialState.INFEASIBLE else {},
            system_attrs={**trial.sampler, **self._completed_rungs(trial, rungs)},
            constraints=_constraints(trial),
        )
        self._earlier.append(frozen)
        return frozen

    def _completed_rungs(self, trial: TrialRecord, values: Mapping[int, float]) -> dict[str, float]:
        """The value with which a trial completed each of its own rungs, which successive halving compares. Optuna
        stores it while it judges a trial, so it is rebuilt for trials that another process judged."""
        pruner: Any = self.study.pruner
        kind = self.spec.pruner.kind
        if kind not in ("halving", "hyperband") or trial.origin == "rerun":
            return {}
        if kind == "hyperband":
            if not pruner._pruners:
                pruner._try_initialization(self.study)
            pruner = pruner._pruners[pruner._get_bracket_id(self.study, SimpleNamespace(number=trial.number))]
        judged = sorted(rung for rung in values if rung < self.spec.pruner.rungs)
        completed: dict[str, float] = {}
        while judged:
            needed = pruner._min_resource * pruner._reduction_factor ** (
                pruner._min_early_stopping_rate + len(completed)
            )
            judged = [rung for rung in judged if rung >= needed]
            if judged:
                completed[f"completed_rung_{len(completed)}"] = values[judged[0]]
        return completed

    def _tell(self, trial: TrialRecord) -> None:
        states = self._optuna.trial.TrialState
        state = states[_state_name(trial)]
        for key, value in _constraints(trial).items():
            self._trial(trial.number).set_constraint(key, value)
        values = list(trial.values) if state is states.COMPLETE else None
        self.study.tell(trial.number, values, state=state, skip_if_finished=True)
        self._over.add(trial.number)

    def _trial(self, number: int) -> Any:
        storage = self.study._storage
        trial_id = storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)
        return self._optuna.trial.Trial(self.study, trial_id)


def _import_cmaes() -> None:
    """Import cmaes without scipy.stats, which takes seconds and most of a process's memory. Only its variants with
    margin use scipy.stats, and it is optional for them."""
    absent: Any = None
    is_hidden = sys.modules.setdefault("scipy.stats", absent) is None
    try:
        importlib.import_module("cmaes")
    finally:
        if is_hidden:
            del sys.modules["scipy.stats"]


def _state_name(trial: TrialRecord) -> str:
    if trial.state is TrialState.INFEASIBLE:
        # The worst result, so that a learning sampler avoids such points.
        return "COMPLETE" if trial.values else "PRUNED"
    return _STATES.get(trial.state, "RUNNING")


def _constraints(trial: TrialRecord) -> dict[str, float]:
    return {f"constraint {index}": value for index, value in enumerate(trial.constraints)}


def _storable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler's state without CMA-ES's pickle."""
    return {key: value for key, value in attributes.items() if not key.startswith("cma:")}


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if dimension.kind == "choice":
        return kinds.CategoricalDistribution(dimension.choices)
    if dimension.kind == "int":
        return kinds.IntDistribution(
            int(dimension.low or 0), int(dimension.high or 0), log=dimension.log, step=int(dimension.step or 1)
        )
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _pruner(optuna: Any, spec: StudySpec) -> Any:
    pruners, pruner = optuna.pruners, spec.pruner
    match pruner.kind:
        case "median":
            return pruners.MedianPruner(n_startup_trials=pruner.startup, n_warmup_steps=pruner.warmup)
        case "percentile":
            return pruners.PercentilePruner(
                pruner.percentile, n_startup_trials=pruner.startup, n_warmup_steps=pruner.warmup
            )
        case "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=pruner.eta)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=pruner.rungs, reduction_factor=pruner.eta)
        case "patient":
            return pruners.PatientPruner(None, patience=pruner.patience)
        case _:
            return pruners.NopPruner()
