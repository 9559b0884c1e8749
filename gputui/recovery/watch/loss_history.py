"""The history of a loss, and whether it still improves.

Pure. The loss of a step is noisy: the best of many values is only the luckiest one. A slowly
falling loss would never beat it, and on a plateau luck alone finds a new best now and then. So a
loss has improved if both of these hold: its mean over half the patience is lower than any before,
and the regression line over twice the patience falls significantly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct, field

# The numbers of blocks in the patience, in the mean and in the regression line.
PATIENCE_BLOCKS = 10
MEAN_BLOCKS = 5
LINE_BLOCKS = 20
# A falling slope is this many standard errors below zero. In simulations (tests/recovery/watch)
# luck ends a plateau about once in 20 000 steps, and a fall by a fifth of the noise in 1000 steps
# is never taken for a plateau.
MIN_ERRORS = 1.5
# The smallest improvement, as a share of the best value.
MIN_IMPROVEMENT = 1e-4


class BestLoss(Struct):
    """The best value of a metric to minimize, when it was, and the first value."""

    value: float | None = None
    step: int | None = None
    epoch: float | None = None
    trained_seconds: float = 0.0
    first: float = 0.0

    def add(self, value: float, step: int | None, epoch: float | None, trained_seconds: float) -> bool:
        """Add a value; return whether it is the best so far."""
        if self.value is None:
            self.first = value
        elif value >= self.value - MIN_IMPROVEMENT * abs(self.value):
            return False
        self.value = value
        self.step = step
        self.epoch = epoch
        self.trained_seconds = trained_seconds
        return True


class LossHistory(Struct):
    """The means of blocks of steps, and the best.

    Attributes:
        blocks: the newest means.
        begin: the first step of the block that is not over; None before its first loss.
        total: the sum of the losses in the block that is not over.
        count: how many losses the block that is not over has.
        best: the best mean over several blocks.
        blocks_since: how many blocks have ended after the best.
    """

    blocks: list[float] = field(default_factory=list)
    begin: int | None = None
    total: float = 0.0
    count: int = 0
    best: BestLoss = field(default_factory=BestLoss)
    blocks_since: int = 0

    def add(
        self, loss: float, step: int, epoch: float | None, patience_steps: float, trained_seconds: float = 0.0
    ) -> None:
        """Add a finite loss. If lines are rarer than blocks, each line is a block."""
        if self.begin is not None and step - self.begin >= patience_steps / PATIENCE_BLOCKS:
            self._end_block()
            self._judge(step, epoch, trained_seconds)
        if self.begin is None:
            self.begin = step
        self.total += loss
        self.count += 1

    def _end_block(self) -> None:
        self.blocks.append(self.total / self.count)
        del self.blocks[:-LINE_BLOCKS]
        self.total = 0.0
        self.count = 0
        self.begin = None

    def _judge(self, step: int, epoch: float | None, trained_seconds: float) -> None:
        """Take the mean over the newest blocks as the best if it is one."""
        if len(self.blocks) < MEAN_BLOCKS:
            return
        self.blocks_since += 1
        mean = statistics.fmean(self.blocks[-MEAN_BLOCKS:])
        may_be_best = self.best.value is None or falls(self.blocks)
        if may_be_best and self.best.add(mean, step, epoch, trained_seconds):
            self.blocks_since = 0

    def steps_since(self, step: int | None, patience_steps: float) -> int | None:
        """The steps without improvement; at most the patience if there were too few lines since."""
        if step is None or self.best.step is None:
            return None
        steps = max(0, step - self.best.step)
        if self.blocks_since >= PATIENCE_BLOCKS:
            return steps
        return min(steps, int(patience_steps))


def falls(values: Sequence[float]) -> bool:
    """Return whether the least-squares line through evenly spaced values falls significantly."""
    middle = (len(values) - 1) / 2
    mean = statistics.fmean(values)
    places = [place - middle for place in range(len(values))]
    spread = sum(place**2 for place in places)
    slope = sum(place * (value - mean) for place, value in zip(places, values, strict=True)) / spread
    residual = sum((value - mean - slope * place) ** 2 for place, value in zip(places, values, strict=True))
    return slope < -MIN_ERRORS * math.sqrt(residual / (len(values) - 2) / spread)
