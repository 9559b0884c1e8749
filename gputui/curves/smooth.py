"""A moving average over bins, for drawing in front of what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.charts.envelope import Bin
from gputui.charts.smoothing import DebiasedEma

_SET = frozenset(
    {
        "lr", "learning_rate", "epoch", "step", "samples", "tokens", "loss_scale", "weight_decay", "momentum",
        "batch_size", "grad_accum", "gradient_accumulation_steps", "world_size", "parameters",
    }
)  # fmt: skip


def is_set(name: str) -> bool:
    """Whether a metric is set or counted rather than measured, so that an average of it would only lie: learning rates
    (``lr``, ``lr/group0``, ``optimizer.learning_rate``), epochs, totals and the like, by the parts of its name."""
    parts = name.casefold().replace(".", "/").replace("-", "_").split("/")
    return any(part in _SET or part.startswith(("lr_", "total_")) or part.endswith("_lr") for part in parts)


def smooth_bins(bins: Iterable[Bin], weight: float) -> list[Bin]:
    """The debiased exponential average after each bin's mean of first and last value, as a place in each bin's middle.

    A bin without a finite value neither moves the average nor gets one; the curve goes on behind it. ``weight`` is how
    much of the past is kept from bin to bin, from 0 to below 1; a gap in the curve does not forget.
    """
    average = DebiasedEma(weight)
    smoothed = []
    for each in bins:
        if each.first is None or each.last is None:
            continue
        value = average.push(each.first / 2 + each.last / 2)
        if value is not None:
            middle = each.first_x / 2 + each.last_x / 2
            smoothed.append(Bin(middle, middle, value, value, value, value, each.points, gap_before=each.gap_before))
    return smoothed
