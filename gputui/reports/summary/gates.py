"""Quality gates: whether a run is good enough. Each passes, fails, or is skipped without data.
Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gputui.core.units import count_of, short_number

if TYPE_CHECKING:
    from gputui.reports.summary.facts import RunFacts

Outcome = Literal["pass", "fail", "skip"]
Judged = tuple[float | None, str]
"""A figure and a remark. Without a figure the gate is skipped, and the remark is the reason."""

LOSS_FLOOR = 0.1
"""Differences of losses are relative to the loss, but to at least this share of the first epoch's
loss: noise can double the loss of a converged model."""

LEAST_BASE = 1e-12
"""What differences are relative to where a loss is 0, as that of a test's model may be."""


class GateVerdict(Struct, frozen=True):
    """The verdict of a gate.

    Attributes:
        figure: what was measured, in ``unit``; None if unknown, infinite if it always fails.
        threshold: the limit of the figure, in ``unit``.
        text: a sentence.
    """

    gate: str
    outcome: Outcome
    figure: float | None
    threshold: float
    unit: str
    text: str


class Gate(Struct, frozen=True):
    """A gate.

    Attributes:
        threshold: the largest figure that passes, or the smallest if ``is_least``.
        judge: returns the figure; gets the run and its parallel efficiency.
        is_least: whether larger figures are better.
    """

    name: str
    threshold: float
    unit: str
    judge: Callable[[RunFacts, float | None], Judged]
    is_least: bool = False

    def passes(self, figure: float, threshold: float) -> bool:
        if self.is_least:
            return figure >= threshold
        return figure <= threshold


def _loss(run: RunFacts, _efficiency: float | None) -> Judged:
    epochs = run.measured.epochs
    if len(epochs) < 2:
        return None, "fewer than two epochs of losses"
    floor = max(LOSS_FLOOR * abs(epochs[0].loss), LEAST_BASE)
    rises = []
    for before, after in itertools.pairwise(epochs):
        rise = 100.0 * (after.loss - before.loss) / max(abs(before.loss), floor)
        if not math.isfinite(rise):
            return math.inf, f"the loss of epoch {after.epoch} or of the one before it is not a number"
        rises.append((rise, after.epoch))
    # Of equal ones, the first.
    worst, epoch = max(rises, key=lambda pair: pair[0])
    change = "rose" if worst > 0 else "fell"
    return worst, f"the loss {change} by {abs(worst):.2f} % at the worst, in epoch {epoch}"


def _gradients(run: RunFacts, _efficiency: float | None) -> Judged:
    norms = run.measured.gradient_norm
    bad = run.measured.gradients_not_finite
    # Loss scaling finds its scale by infinite gradients.
    if bad and not run.measured.scales_loss:
        return math.inf, f"the norm of the gradients was not a number in {count_of(bad, 'step')}"
    if norms is None:
        return None, "no norms of gradients"
    if norms.p50 <= 0:
        return None, "the gradients are 0"
    high = short_number(norms.p99)
    median = short_number(norms.p50)
    return norms.p99 / norms.p50, f"of the norms the 99th percentile is {high}, the median {median}"


def _rate(run: RunFacts, _efficiency: float | None) -> Judged:
    rate = run.measured.rate
    if rate is None:
        return None, "no schedule is known for the learning rate"
    percent = rate.worst_percent
    return percent, f"off by {percent:.2f} % at the worst, at step {rate.step}"


def _gap(run: RunFacts, _efficiency: float | None) -> Judged:
    validation = run.measured.validation
    if validation is None:
        return None, "no validation loss beside a training loss"
    epochs = run.measured.epochs
    train = validation.train_loss
    floor = 0.0
    if epochs and math.isfinite(epochs[0].loss):
        floor = LOSS_FLOOR * abs(epochs[0].loss)
    base = max(abs(train), floor, LEAST_BASE)
    base_name = "a tenth of the first epoch's loss" if floor > abs(train) else "the training loss"
    text = (
        f"validation {short_number(validation.loss)}, training {short_number(train)}; "
        f"their difference is compared with {short_number(base)}, {base_name}"
    )
    gap = 100.0 * (validation.loss - train) / base
    if not math.isfinite(gap):
        return math.inf, text
    return gap, text


def _utilisation(run: RunFacts, _efficiency: float | None) -> Judged:
    used = run.gpus.utilization_percent
    if used is None:
        return None, "no GPU was sampled while the run had it"
    return used.mean, f"the GPUs were used {used.mean:.1f} % of the time"


def _scaling(_run: RunFacts, efficiency: float | None) -> Judged:
    if efficiency is None:
        return None, "no run of the same profile and parameters with fewer GPUs"
    return 100.0 * efficiency, f"{100.0 * efficiency:.1f} % of an even gain"


GATES = (
    Gate("loss_rise", 1.0, "% an epoch", _loss),
    Gate("gradients", 10.0, "× the median", _gradients),
    Gate("learning_rate", 1.0, "% off its schedule", _rate),
    Gate("validation_gap", 20.0, "%", _gap),
    Gate("gpu_utilization", 85.0, "%", _utilisation, is_least=True),
    Gate("parallel_efficiency", 80.0, "%", _scaling, is_least=True),
)
GATE_THRESHOLDS: Mapping[str, float] = {gate.name: gate.threshold for gate in GATES}


def judge(run: RunFacts, efficiency: float | None, thresholds: Mapping[str, float]) -> tuple[GateVerdict, ...]:
    """The verdicts of all gates.

    Args:
        run: the run to judge.
        efficiency: the run's parallel efficiency; None if it is not compared with others.
        thresholds: override those of the run's profile, which override the defaults.
    """
    limits = {**GATE_THRESHOLDS, **run.thresholds, **thresholds}
    verdicts = []
    for gate in GATES:
        figure, text = gate.judge(run, efficiency)
        threshold = limits[gate.name]
        outcome: Outcome = "skip"
        if figure is not None:
            outcome = "pass" if gate.passes(figure, threshold) else "fail"
        verdicts.append(GateVerdict(gate.name, outcome, figure, threshold=threshold, unit=gate.unit, text=text))
    return tuple(verdicts)
