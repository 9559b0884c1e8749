"""Optuna's part of a study: choosing points, and saying which trials to cut short.

The Optuna study lives in memory and mirrors the rows of the store, finished and running trials alike, so that a process
that is killed loses nothing. Only a study's process imports this module.
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
"""Libraries that samplers need besides Optuna."""
_LEAST_SOLUTIONS = 10
"""Of which CMA-ES takes the best tenth to begin from."""
_STATES = {
    TrialState.COMPLETE: "COMPLETE",
    TrialState.PRUNED: "PRUNED",
    TrialState.FAILED: "FAIL",
    TrialState.STOPPED: "FAIL",
}


def install_command() -> str:
    """What installs Optuna beside this gputui: where that is a checkout, no package of its name is meant."""
    try:
        origin = json.loads(importlib.metadata.distribution("gputui").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e {shlex.quote(unquote(urlsplit(origin['url']).path) + '[tune]')}"
    return 'pip install "gputui[tune]"'


def missing_library(spec: StudySpec) -> str | None:
    """One line with the command that installs what the study lacks; None where nothing is missing."""
    if not spec.needs_optuna:
        return None
    if importlib.util.find_spec("optuna") is None:
        return f"Optuna is not installed; {install_command()}"
    lacking = [name for name in _NEEDS.get(spec.sampler.kind, ()) if importlib.util.find_spec(name) is None]
    return f"the sampler {spec.sampler.kind} needs {lacking[0]}; pip install {lacking[0]}" if lacking else None


class OptunaMirror:
    """The study as Optuna sees it. ``study_id`` is its name there: Hyperband's brackets come from name and number.

    Raises ImportError where Optuna is not installed.
    """

    def __init__(self, spec: StudySpec, study_id: str, remembered: Mapping[str, Any]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._optuna = optuna
        self.spec = spec
        self._distributions = {one.name: _distribution(optuna, one) for one in spec.space}
        self._earlier: list[Any] = []
        self.study = optuna.create_study(
            study_name=study_id,
            directions=[one.direction for one in spec.objectives],
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
        """How many trials it has."""
        return len(self.study.get_trials(deepcopy=False))

    def sync(self, trials: Sequence[TrialRecord], rungs: Sequence[RungValue]) -> None:
        """Take over what the store has: new trials, values at rungs (of `unsettled` trials at least), verdicts. What is
        known already changes nothing."""
        values: dict[int, dict[int, float]] = {}
        for one in rungs:
            if one.value is not None and not math.isnan(one.value):
                values.setdefault(one.number, {})[one.rung] = one.value
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
        """The trials whose values at rungs may not be known here."""
        return [trial.number for trial in trials if trial.number not in self._over]

    def is_outdated(self, trials: Sequence[TrialRecord]) -> bool:
        """Whether a trial that was over goes on, which Optuna does not know of."""
        return any(trial.number in self._over and not trial.state.is_over for trial in trials)

    def report(self, number: int, rung: int, value: float) -> None:
        """A value of a living trial at a rung, once for each."""
        self._trial(number).report(value, rung)
        self._rungs[number] = rung

    def should_prune(self, number: int) -> bool:
        """Whether the pruner would cut the trial short, by what was reported."""
        return bool(self._trial(number).should_prune())

    def ask(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """A new point: its parameters, and what the sampler remembers of it and of the study (JSON)."""
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
        """A sampler whose chance depends on the study's seed and the trial's number alone, so that a process that was
        killed is followed by one that does not draw the same points again."""
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
                # Its state is a pickle, which is not read back from a file: another process begins from what is known.
                if self._sampler is None:
                    _import_cmaes()
                    known = self._solutions()
                    self._sampler = samplers.CmaEsSampler(
                        seed=seed,
                        source_trials=known if len(known) >= _LEAST_SOLUTIONS else None,
                        warn_independent_sampling=False,
                        independent_sampler=samplers.RandomSampler(seed=seed),
                        **startup,
                    )
                return self._sampler
            case _:
                return samplers.RandomSampler(seed=seed)

    def _solutions(self) -> list[Any]:
        """The complete trials of before this process, with the parameters that are numbers."""
        numbers = {one.name: self._distributions[one.name] for one in self.spec.space if one.kind != "choice"}
        return [
            self._optuna.trial.create_trial(
                params={name: one.params[name] for name in numbers}, distributions=numbers, value=one.value
            )
            for one in self._earlier
            if one.state.name == "COMPLETE" and numbers.keys() <= one.params.keys()
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
        """What successive halving compares: the value with which a trial completed each of its own rungs. Optuna notes
        it while the trial is judged, so for one that another process judged it is made up for."""
        pruner: Any = self.study.pruner
        kind = self.spec.pruner.kind
        if kind not in ("halving", "hyperband") or trial.origin == "rerun":
            return {}
        if kind == "hyperband":
            if not pruner._pruners:
                pruner._try_initialization(self.study)
            pruner = pruner._pruners[pruner._get_bracket_id(self.study, SimpleNamespace(number=trial.number))]
        judged = sorted(rung for rung in values if rung < self.spec.pruner.rungs)
        found: dict[str, float] = {}
        while judged:
            needed = pruner._min_resource * pruner._reduction_factor ** (pruner._min_early_stopping_rate + len(found))
            judged = [rung for rung in judged if rung >= needed]
            if judged:
                found[f"completed_rung_{len(found)}"] = values[judged[0]]
        return found

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
    """Import the library without scipy.stats, which takes seconds and most of a study's memory: only its variants with
    margin ask for that, and they do without where it cannot be imported."""
    absent: Any = None
    is_hidden = sys.modules.setdefault("scipy.stats", absent) is None
    try:
        importlib.import_module("cmaes")
    finally:
        if is_hidden:
            del sys.modules["scipy.stats"]


def _state_name(trial: TrialRecord) -> str:
    if trial.state is TrialState.INFEASIBLE:
        # What did not fit is the worst of all, so that a sampler that learns keeps away from there.
        return "COMPLETE" if trial.values else "PRUNED"
    return _STATES.get(trial.state, "RUNNING")


def _constraints(trial: TrialRecord) -> dict[str, float]:
    return {f"constraint {place}": value for place, value in enumerate(trial.constraints)}


def _storable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What may be kept: CMA-ES's own state is a pickle."""
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
