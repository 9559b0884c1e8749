"""Studies without processes: gputui's own sampling, pruning and population decisions over planted trainings, in turns.

Trials that live take one step each a turn, in the order of their numbers, so that a seed decides everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.storages import InMemoryStorage

from benchmarks.studies import moving, planted
from gputui.store.studies import TrialState
from gputui.studies import pbt
from gputui.studies.decide import Ruling
from gputui.studies.journal import StudyJournal
from gputui.studies.spec import (
    Dimension,
    Objective,
    PbtSpec,
    PrunerKind,
    PrunerSpec,
    SamplerKind,
    SamplerSpec,
    StudySpec,
)

PLANTED_SPACE = (
    Dimension("lr", "float", *planted.LR, log=True),
    Dimension("dropout", "float", *planted.DROPOUT),
    Dimension("width", "choice", choices=planted.WIDTHS),
)
MOVING_SPACE = (Dimension("lr", "float", *moving.LR, log=True),)
LOSS = Objective("loss")


@dataclass(slots=True)
class SimulatedTrial:
    """A trial: its losses at rungs, and its end."""

    number: int
    curve: list[float]
    rung: int = 0
    state: TrialState = TrialState.RUNNING

    @property
    def best(self) -> float:
        return min(self.curve[: self.rung])


@dataclass(slots=True)
class SimulatedStudy:
    """The findings of a study: its trials, the best of the complete ones, and the share of the
    compute of full runs."""

    trials: list[SimulatedTrial] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(trial.best for trial in self.trials if trial.state is TrialState.COMPLETE)

    @property
    def used_share(self) -> float:
        return sum(trial.rung for trial in self.trials) / (len(self.trials) * planted.STEPS)


def planted_study(
    pruner: PrunerKind, seed: int, *, trials: int = 32, slots: int = 8, sampler: SamplerKind = "tpe"
) -> SimulatedStudy:
    """A study of the planted space. Its name decides Hyperband's brackets, so it has the seed in it."""
    study_id = f"planted-{seed}"
    length = float(planted.STEPS)
    spec = StudySpec(
        "planted", "planted", PLANTED_SPACE, (LOSS,), SamplerSpec(sampler),
        PrunerSpec(pruner, length=length, rungs=planted.STEPS), seed=seed,
    )  # fmt: skip
    journal = StudyJournal(spec, study_id, InMemoryStorage())
    study = SimulatedStudy()
    while True:
        living = [trial for trial in study.trials if trial.state is TrialState.RUNNING]
        while len(living) < slots and len(study.trials) < trials:
            journal.sample()
            living.append(SimulatedTrial(len(study.trials), planted.loss_curve(**journal.trials()[-1].params)))
            study.trials.append(living[-1])
        if not living:
            return study
        for trial in living:
            trial.rung += 1
            journal.report(trial.number, trial.rung, trial.best)
            if trial.rung == planted.STEPS:
                trial.state = TrialState.COMPLETE
                journal.end(trial.number, Ruling(trial.state, reason=None, values=(trial.best,)), 0.0)
            elif pruner != "none" and journal.should_prune(trial.number):
                trial.state = TrialState.PRUNED
                journal.end(trial.number, Ruling(trial.state), 0.0)


@dataclass(frozen=True, slots=True)
class PopulationResult:
    """The final loss of the best member, and of the best of the same first points when they stay as they are."""

    population: float
    fixed: float
    exploits: int


def moving_population(seed: int, *, members: int = 8, steps: int = 800, every: int = 20) -> PopulationResult:
    """A population on the moving optimum: every decision is that of a study's process."""
    spec = PbtSpec(members, every)
    rates: list[Mapping[str, Any]] = [pbt.first_point(MOVING_SPACE, seed, number) for number in range(members)]
    fixed = min(moving.trained(rate["lr"], 0, steps, steps) for rate in rates)
    losses = [moving.FIRST] * members
    exploited = 0
    for milestone in range(1, steps // every + 1):
        begin = (milestone - 1) * every
        losses = [
            moving.trained(rate["lr"], begin, begin + every, steps, loss)
            for rate, loss in zip(rates, losses, strict=True)
        ]
        if milestone * every >= steps:
            break
        population = [
            pbt.PopulationMember(number, rates[number], losses[number], can_give=True) for number in range(members)
        ]
        exploits = pbt.choose_exploits(population, milestone, spec, space=MOVING_SPACE, objective=LOSS, seed=seed)
        exploited += len(exploits)
        before = list(losses)
        for exploit in exploits:
            losses[exploit.number] = before[exploit.donor]
            rates[exploit.number] = exploit.params
    return PopulationResult(min(losses), fixed, exploited)
