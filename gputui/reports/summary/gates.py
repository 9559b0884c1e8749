"""Quality gates: whether a run is good enough. Each passes, fails, or is skipped without data. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from gputui.core.units import short_number
from gputui.reports.summary.facts import RunFacts, number
from gputui.reports.summary.thresholds import GATE_THRESHOLDS

Outcome = Literal["pass", "fail", "skip"]

LOSS_FLOOR = 0.1
"""Differences of losses are relative to the loss, but to at least this share of the first epoch's loss: noise can
double the loss of a converged model."""


class GateVerdict(Struct, frozen=True):
    """The verdict of a gate. ``figure`` is compared with ``threshold``, both in ``unit``; None if unknown, infinite if
    it always fails. ``text`` is a sentence."""

    gate: str
    outcome: Outcome
    figure: float | None
    threshold: float
    unit: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "gate": self.gate,
            "outcome": self.outcome,
            "figure": number(self.figure),
            "threshold": self.threshold,
            "unit": self.unit,
            "text": self.text,
        }


class Judged(Struct, frozen=True):
    """A figure and a remark. Without a figure the gate is skipped, and the remark is the reason."""

    figure: float | None
    text: str


class Gate(Struct, frozen=True):
    """A gate. Its threshold is the largest figure that passes, or the smallest if ``is_least``."""

    name: str
    unit: str
    is_least: bool
    judge: Callable[[RunFacts, float | None], Judged]


def _loss(run: RunFacts, _efficiency: float | None) -> Judged:
    epochs = run.measured.epochs
    if len(epochs) < 2:
        return Judged(None, "fewer than two epochs of losses")
    worst, at = -math.inf, epochs[0].epoch
    floor = LOSS_FLOOR * abs(epochs[0].loss)
    for before, after in itertools.pairwise(epochs):
        rise = 100.0 * (after.loss - before.loss) / max(abs(before.loss), floor, 1e-12)
        if not math.isfinite(rise):
            return Judged(math.inf, f"the loss of epoch {after.epoch} or of the one before it is not a number")
        if rise > worst:
            worst, at = rise, after.epoch
    return Judged(
        worst, f"the loss {'rose' if worst > 0 else 'fell'} by {abs(worst):.2f} % at the worst, in epoch {at}"
    )


def _gradients(run: RunFacts, _efficiency: float | None) -> Judged:
    norms, bad = run.measured.gradient_norm, run.measured.gradients_not_finite
    # Loss scaling finds its scale by infinite gradients.
    if bad and not run.measured.scales_loss:
        return Judged(math.inf, f"the norm of the gradients was not a number in {bad} steps")
    if norms is None:
        return Judged(None, "no norms of gradients")
    if norms.p50 <= 0:
        return Judged(None, "the gradients are 0")
    text = f"of the norms the 99th percentile is {short_number(norms.p99)}, the median {short_number(norms.p50)}"
    return Judged(norms.p99 / norms.p50, text)


def _rate(run: RunFacts, _efficiency: float | None) -> Judged:
    rate = run.measured.rate
    if rate is None:
        return Judged(None, "no schedule is known for the learning rate")
    return Judged(rate.worst_percent, f"off by {rate.worst_percent:.2f} % at the worst, at step {rate.step}")


def _gap(run: RunFacts, _efficiency: float | None) -> Judged:
    found = run.measured.validation
    if found is None:
        return Judged(None, "no validation loss beside a training loss")
    epochs = run.measured.epochs
    floor = LOSS_FLOOR * abs(epochs[0].loss) if epochs and math.isfinite(epochs[0].loss) else 0.0
    base = max(abs(found.train_loss), floor, 1e-12)
    gap = 100.0 * (found.loss - found.train_loss) / base
    whose = "a tenth of the first epoch's loss" if floor > abs(found.train_loss) else "the training loss"
    text = (
        f"validation {short_number(found.loss)}, training {short_number(found.train_loss)}; "
        f"their difference is compared with {short_number(base)}, {whose}"
    )
    return Judged(gap if math.isfinite(gap) else math.inf, text)


def _utilisation(run: RunFacts, _efficiency: float | None) -> Judged:
    used = run.gpus.utilization_percent
    if used is None:
        return Judged(None, "no GPU was sampled while the run had it")
    return Judged(used.mean, f"the GPUs were used {used.mean:.1f} % of the time")


def _efficiency(_run: RunFacts, efficiency: float | None) -> Judged:
    if efficiency is None:
        return Judged(None, "no run of the same profile and parameters with fewer GPUs")
    return Judged(100.0 * efficiency, f"{100.0 * efficiency:.1f} % of an even gain")


GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("loss_rise", "% an epoch", False, _loss),
        Gate("gradients", "× the median", False, _gradients),
        Gate("learning_rate", "% off its schedule", False, _rate),
        Gate("validation_gap", "%", False, _gap),
        Gate("gpu_utilization", "%", True, _utilisation),
        Gate("parallel_efficiency", "%", True, _efficiency),
    )
}


def judge(run: RunFacts, efficiency: float | None, thresholds: Mapping[str, float]) -> tuple[GateVerdict, ...]:
    """The verdicts of all gates. ``thresholds`` override those of the run's profile, which override the defaults."""
    asked = {**run.thresholds, **thresholds}
    return tuple(_verdict(gate, gate.judge(run, efficiency), asked) for gate in GATES.values())


def _verdict(gate: Gate, judged: Judged, thresholds: Mapping[str, float]) -> GateVerdict:
    threshold = thresholds.get(gate.name, GATE_THRESHOLDS[gate.name])
    outcome: Outcome = "skip"
    if judged.figure is not None:
        good = judged.figure >= threshold if gate.is_least else judged.figure <= threshold
        outcome = "pass" if good else "fail"
    return GateVerdict(gate.name, outcome, judged.figure, threshold, gate.unit, judged.text)
