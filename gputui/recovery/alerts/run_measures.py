"""The measures of rules about a run. Pure. A threshold is in the unit at the end of its name."""

from __future__ import annotations

import math

from gputui.core.units import count, metric_value, short_number
from gputui.recovery.alerts.measures import Limits
from gputui.recovery.alerts.moments import IDLE, UNKNOWN, RuleReading, RunMoment, Stagnation

MIN_SAMPLES = 100
"""Fewer samples have no share."""


def no_improvement(run: RunMoment, limits: Limits) -> RuleReading:
    """The steps or epochs without an improvement: the value that is farthest beyond its limit. Converged metrics, and
    spans shorter than the limit in minutes, are ignored."""
    if not run.is_training:
        return IDLE
    found: RuleReading | None = None
    judged = [
        one
        for one in run.stagnation
        if not one.is_converged and (one.seconds is None or one.seconds >= 60.0 * limits["minutes"])
    ]
    if run.stagnation and not judged:
        return IDLE
    for one in judged:
        for value, limit, unit in ((one.steps, limits["steps"], "steps"), (one.epochs, limits["epochs"], "epochs")):
            if value is not None and limit > 0 and (found is None or value / limit > (found.value or 0) / found.limit):
                found = RuleReading(float(value), limit, _since(one, float(value), unit))
    return found or UNKNOWN


def gradient_norm(run: RunMoment, limits: Limits) -> RuleReading:
    """The gradient norm; NaN counts as infinite."""
    if not run.is_training:
        return IDLE
    norm = run.values.get("grad_norm")
    return RuleReading(math.inf if norm is not None and math.isnan(norm) else norm, limits["above"])


def slow_steps(run: RunMoment, limits: Limits) -> RuleReading:
    """The step time in milliseconds. Its limit is at least a multiple of the run's own median, because large models
    have long steps."""
    if not run.is_training:
        return IDLE
    seconds = run.means.get("step_time")
    if seconds is None or run.median_step_seconds is None:
        return UNKNOWN
    own = 1000.0 * run.median_step_seconds
    detail = f"; it was about {own:.0f} ms before"
    return RuleReading(1000.0 * seconds, max(limits["above_milliseconds"], limits["times_median"] * own), detail)


def data_wait(run: RunMoment, limits: Limits) -> RuleReading:
    """The time that a step waits for data, in milliseconds. Its limit is at least a share of the step time, if that is
    known."""
    if not run.is_training:
        return IDLE
    wait, step = run.means.get("data_time"), run.means.get("step_time")
    if wait is None:
        return UNKNOWN
    if not step or not math.isfinite(step):
        return RuleReading(1000.0 * wait, limits["above_milliseconds"])
    limit = max(limits["above_milliseconds"], 10.0 * limits["above_percent"] * step)
    return RuleReading(1000.0 * wait, limit, f", {100.0 * wait / step:.0f} % of a step")


def cache_misses(run: RunMoment, limits: Limits) -> RuleReading:
    """The share of samples found in the cache, after the first epoch, which fills it."""
    epoch = run.values.get("epoch")
    if not run.is_training or (epoch is not None and epoch < 1):
        return IDLE
    return RuleReading(run.cache_hit_percent, limits["below_percent"])


def skipped_samples(run: RunMoment, limits: Limits) -> RuleReading:
    """The share of samples that could not be read."""
    if not run.is_training:
        return IDLE
    if run.samples_seen is not None and run.samples_seen < MIN_SAMPLES:
        return UNKNOWN
    return RuleReading(run.skipped_percent, limits["above_percent"])


def nccl_errors(run: RunMoment, limits: Limits) -> RuleReading:
    """Errors of the communication between GPUs."""
    return RuleReading(float(run.nccl_errors), 0.0, run.nccl_text)


def lr_off_schedule(run: RunMoment, limits: Limits) -> RuleReading:
    """The difference between the learning rate and its schedule in percent. Does not apply without a schedule."""
    if not run.is_training:
        return IDLE
    if not run.values:
        return UNKNOWN
    if run.lr_expected is None:
        return IDLE
    rate = run.values.get("lr")
    if rate is None:
        return UNKNOWN
    low, high = run.lr_expected
    nearest = min(max(rate, low), high)
    off = 100.0 * abs(rate - nearest) / max(abs(nearest), 1e-12) if math.isfinite(rate) else math.inf
    detail = f"is {short_number(rate)}, its schedule says {short_number(nearest if math.isfinite(rate) else high)}"
    return RuleReading(off, limits["above_percent"], detail)


def _since(stagnation: Stagnation, value: float, unit: str) -> str:
    best = f"best {metric_value(stagnation.best)}" + (
        "" if stagnation.step is None else f" at step {count(stagnation.step)}"
    )
    amount = count(int(value)) if value.is_integer() else f"{value:.1f}"
    return f"{stagnation.metric}: no improvement for {amount} {unit} ({best})"
