"""A study in Optuna's journal storage: the truth of its trials, points, values at rungs, pruning
and verdicts.

The journal is a file in the study's folder, which any Optuna process of the same user may join.
gputui's trials carry the attribute `OWN`, written together with the trial; all others belong to
processes outside. Only a study's process, reports and exports import this module.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any
from uuid import uuid4

import optuna
from msgspec import to_builtins
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from gputui.runs.spec import Scalar
from gputui.store.studies import OUTSIDE, RungValue, TrialRecord
from gputui.store.studies import TrialState as Verdict
from gputui.studies import samplers
from gputui.studies.decide import Ruling
from gputui.studies.spec import StudySpec

OWN = "gputui"
"""The attribute of a trial that gputui made: the study that it is of, a key of its own, its origin,
and the run, request or parent behind it."""
VERDICT = "gputui:verdict"
"""The attribute with gputui's verdict, written before Optuna's state."""

optuna.logging.set_verbosity(optuna.logging.ERROR)

_OPTUNA_STATES = {
    Verdict.COMPLETE: TrialState.COMPLETE,
    Verdict.PRUNED: TrialState.PRUNED,
    Verdict.FAILED: TrialState.FAIL,
    Verdict.STOPPED: TrialState.FAIL,
}


class StudyJournal:
    """A study's trials in Optuna. ``study_id`` is its name there; Hyperband's brackets depend on
    name and number."""

    def __init__(self, spec: StudySpec, study_id: str, storage: optuna.storages.BaseStorage) -> None:
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self.spec = spec
        self._study_id = study_id
        self.study = optuna.create_study(
            study_name=study_id,
            storage=storage,
            directions=[objective.direction for objective in spec.objectives],
            sampler=optuna.samplers.RandomSampler(),  # tells; each point has a sampler of its own
            pruner=samplers.make_pruner(spec),
            load_if_exists=True,
        )
        if not self.study.metric_names:
            self.study.set_metric_names([objective.metric for objective in spec.objectives])
        self._distributions = {dimension.name: samplers.make_distribution(dimension) for dimension in spec.space}
        self._cma_es: optuna.samplers.BaseSampler | None = None

    def trials(self) -> list[FrozenTrial]:
        """All trials by number, those of other processes included."""
        return self.study.get_trials(deepcopy=False)

    def own_notes(self) -> dict[int, Mapping[str, Any]]:
        """gputui's notes about its own trials of this study, by number. All others belong to other
        processes, those that copied one of gputui's included."""
        notes: dict[str, tuple[int, Mapping[str, Any]]] = {}
        for trial in self.trials():
            noted = trial.user_attrs.get(OWN)
            if isinstance(noted, dict) and noted.get("study") == self._study_id and "origin" in noted:
                notes.setdefault(str(noted.get("key")), (trial.number, noted))
        return dict(notes.values())

    def has_outside_value(self, number: int) -> bool:
        """Return whether another process has ended a trial."""
        trial = self.trials()[number]
        return trial.state.is_finished() and VERDICT not in trial.user_attrs

    def add(
        self, params: Mapping[str, Scalar], origin: str, *, values: Sequence[float] = (), ended_at: float | None = None,
        **notes: Any,
    ) -> None:  # fmt: skip
        """Add a trial with a known point in one line: a complete one with ``values``, else one to
        run."""
        state = TrialState.COMPLETE if values else TrialState.RUNNING
        trial = self._trial(params, state, {"origin": origin, **notes}, values=list(values) or None)
        if ended_at is not None:
            trial.datetime_complete = datetime.fromtimestamp(ended_at)
        self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)

    def _trial(
        self, params: Mapping[str, Scalar], state: TrialState, notes: Mapping[str, Any], **parts: Any
    ) -> FrozenTrial:
        """A trial of gputui with the parameters that the space has."""
        tuned = {name: value for name, value in params.items() if name in self._distributions}
        user_attrs = {OWN: self._own_note(**notes), **parts.pop("user_attrs", {})}
        distributions = {name: self._distributions[name] for name in tuned}
        return create_trial(state=state, params=tuned, distributions=distributions, user_attrs=user_attrs, **parts)

    def _own_note(self, **notes: Any) -> dict[str, Any]:
        return {"study": self._study_id, "key": uuid4().hex, **notes}

    def restore(self, rows: Sequence[TrialRecord], rungs: Sequence[RungValue]) -> None:
        """Add the trials of the table that the journal lost, or never had. The table of a living
        study is never ahead."""
        for row in rows[len(self.trials()) :]:
            state = _state(row.state, row.values)
            user_attrs = {}
            values = None
            if state is not TrialState.RUNNING:
                user_attrs[VERDICT] = _verdict(_ruling(row), row.ended_at or 0.0)
            if state is TrialState.COMPLETE:
                values = list(row.values)
            trial = self._trial(
                row.params,
                state,
                {"origin": row.origin, "parent": row.parent, "run": row.run_id},
                user_attrs=user_attrs,
                values=values,
                intermediate_values={
                    rung.rung: rung.value for rung in rungs if rung.number == row.number and rung.value is not None
                },
                constraints={f"constraint {index}": value for index, value in enumerate(row.constraints)},
            )
            self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)

    def follow(self, rows: Sequence[TrialRecord], *, with_stopped: bool) -> None:
        """End the trials whose rows are over, and those whose verdict a killed process had stored.
        One that was stopped with its study ends only ``with_stopped``: until then it may continue."""
        for trial, row in zip(self.trials(), rows, strict=False):
            if trial.state is not TrialState.RUNNING or row.origin == OUTSIDE:
                continue
            if VERDICT in trial.user_attrs:
                self.apply_verdict(trial)
            elif row.state.is_over and (with_stopped or row.state is not Verdict.STOPPED):
                self.end(row.number, _ruling(row), row.ended_at or 0.0)

    def sample(self) -> None:
        """Add a trial at a point that the sampler draws."""
        trials = list(self._learned_from())
        draft = _Draft(self.study._storage, trials, number=len(self.trials()))
        draft.trial.set_user_attr(OWN, self._own_note(origin="sampled"))
        study = optuna.Study(self._study_id, draft, self._sampler(draft), self.study.pruner)  # type: ignore[arg-type]
        new_trial = Trial(study, draft.trial._trial_id)
        point = draft.trial.params
        for dimension in self.spec.space:
            if dimension.applies(point):
                new_trial._suggest(dimension.name, self._distributions[dimension.name])
        self.study._storage.create_new_trial(self.study._study_id, template_trial=draft.trial)

    def _learned_from(self) -> Iterator[FrozenTrial]:
        """The trials that samplers see. They need the same distribution of a parameter everywhere, so
        trials of other processes have the study's own, and count only with a point of the space."""
        notes = self.own_notes()
        for trial in self.trials():
            if trial.number in notes:
                yield trial
            elif self.spec.has_point(trial.params):
                alike = copy(trial)
                alike.distributions = {name: self._distributions[name] for name in trial.params}
                yield alike

    def _sampler(self, draft: _Draft) -> optuna.samplers.BaseSampler:
        if self.spec.sampler.kind != "cmaes":
            return samplers.make_sampler(self.spec, draft.trial.number)
        if self._cma_es is None:
            self._cma_es = samplers.make_cma_es(self.spec, draft.others)
        return self._cma_es

    def set_params(self, number: int, params: Mapping[str, Scalar]) -> None:
        """Give a population's member the parameters that it trains with from now on."""
        trial = self.trials()[number]
        if trial.state.is_finished():
            return
        for name, value in params.items():
            distribution = self._distributions[name]
            self.study._storage.set_trial_param(
                trial._trial_id, name, distribution.to_internal_repr(value), distribution
            )

    def report(self, number: int, rung: int, value: float) -> None:
        """Store the value of a trial at a rung; that of a population's member may be replaced."""
        trial = self.trials()[number]
        is_new = self.spec.pbt is not None or rung not in trial.intermediate_values
        if is_new and not trial.state.is_finished():
            self.study._storage.set_trial_intermediate_value(trial._trial_id, rung, value)

    def should_prune(self, number: int) -> bool:
        """Return whether the pruner would prune the trial, given the reported values."""
        return self.study.pruner.prune(self.study, self.trials()[number])

    def end(self, number: int, ruling: Ruling, now: float) -> None:
        """Store the verdict on a trial, unless it has one. ``now`` is UTC unix seconds."""
        trial = self.trials()[number]
        if trial.state.is_finished():
            return
        if VERDICT not in trial.user_attrs:
            for index, value in enumerate(ruling.constraints):
                Trial(self.study, trial._trial_id).set_constraint(f"constraint {index}", value)
            self.study._storage.set_trial_user_attr(trial._trial_id, VERDICT, _verdict(ruling, now))
        self.apply_verdict(self.trials()[number])

    def apply_verdict(self, trial: FrozenTrial) -> None:
        """Give a running trial the state of the verdict that it has."""
        verdict = trial.user_attrs[VERDICT]
        values = verdict["values"]
        state = _state(Verdict(verdict["state"]), values)
        if verdict["state"] == Verdict.INFEASIBLE and not values:
            # What it reported would count for the sampler, and for the pruner of others.
            worst = self.spec.objectives[0].sign * math.inf
            for rung in trial.intermediate_values:
                self.study._storage.set_trial_intermediate_value(trial._trial_id, rung, worst)
        if state is not TrialState.COMPLETE:
            values = None
        self.study.tell(trial.number, values, state=state)


class _Draft:
    """A study's storage with one more trial, which is drawn in memory: its point is stored in one line.

    It is what samplers see; ``others`` are the trials beside it."""

    def __init__(self, storage: optuna.storages.BaseStorage, others: list[FrozenTrial], *, number: int) -> None:
        self._storage = storage
        self.others = others
        self.trial = create_trial(state=TrialState.RUNNING)
        self.trial.number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if trial_id == self.trial._trial_id:
            return self.trial
        return self._storage.get_trial(trial_id)

    def get_all_trials(
        self, _: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [trial for trial in self.others if states is None or trial.state in states]

    def set_trial_param(self, _: int, name: str, value: float, distribution: BaseDistribution) -> None:
        self.trial.params[name] = distribution.to_external_repr(value)
        self.trial.distributions[name] = distribution

    def set_trial_system_attr(self, _: int, key: str, value: Any) -> None:
        self.trial.system_attrs[key] = value


def _state(verdict: Verdict, values: Sequence[float]) -> TrialState:
    """Optuna's state for a verdict."""
    if verdict is Verdict.INFEASIBLE:
        # The worst result, so that a learning sampler avoids such points.
        if values:
            return TrialState.COMPLETE
        return TrialState.PRUNED
    return _OPTUNA_STATES.get(verdict, TrialState.RUNNING)


def _ruling(row: TrialRecord) -> Ruling:
    """The ruling on a trial that the table has."""
    return Ruling(row.state, row.reason, row.values, row.constraints)


def _verdict(ruling: Ruling, at: float) -> dict[str, Any]:
    return {**to_builtins(ruling), "at": at}
