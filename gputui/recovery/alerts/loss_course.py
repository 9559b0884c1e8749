"""Whether a noisy loss still improves. Pure; the state can be stored as JSON for the next agent.

The loss of a step is noisy: the best of many values is only the luckiest one. A slowly falling loss would never beat
it, and on a plateau luck alone finds a new best now and then. So a loss has improved if both of these hold: its mean
over half the patience is lower than any before, and the regression line over twice the patience falls significantly.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gputui.recovery.alerts.moments import Stagnation

# The numbers of blocks in the patience, in the mean and in the regression line.
PATIENCE_BLOCKS = 10
MEAN_BLOCKS = 5
LINE_BLOCKS = 20
# A falling slope is this many standard errors below zero. In simulations
# (tests/recovery/alerts/test_loss_course.py) luck ends a plateau about once in 20 000 steps, and a fall by a fifth of
# the noise in 1000 steps is never taken for a plateau.
MIN_ERRORS = 1.5
# The smallest improvement, as a share of the best value.
MIN_IMPROVEMENT = 1e-4
# A loss that has fallen to this share of its first value has converged.
CONVERGED_SHARE = 0.01


@dataclass(slots=True)
class BestLoss:
    """The best value of a metric to minimize, its place and age in seconds of training, and the first value."""

    value: float | None = None
    step: int | None = None
    epoch: float | None = None
    seconds_ago: float = 0.0
    first: float | None = None

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds_ago += seconds

    def add(self, value: float, step: int | None, epoch: float | None) -> bool:
        """Add a value; returns whether it is the best so far."""
        if self.first is None:
            self.first = value
        if self.value is not None and value >= self.value - MIN_IMPROVEMENT * abs(self.value):
            return False
        self.value, self.step, self.epoch, self.seconds_ago = value, step, epoch, 0.0
        return True

    def stagnation(self, metric: str, step: int | None, epoch: float | None) -> Stagnation | None:
        """The time since the best value, at ``step`` and ``epoch``."""
        if self.value is None:
            return None
        steps = None if step is None or self.step is None else max(0, step - self.step)
        epochs = None if epoch is None or self.epoch is None else max(0.0, epoch - self.epoch)
        is_converged = self.first is not None and abs(self.value) < CONVERGED_SHARE * abs(self.first)
        return Stagnation(metric, self.value, self.step, steps, epochs, self.seconds_ago, is_converged)

    def to_json(self) -> list[Any]:
        return [self.value, self.step, self.epoch, self.seconds_ago, self.first]


@dataclass(slots=True)
class LossCourse:
    """The means of the newest blocks of steps, and the best. ``blocks_since`` counts the blocks after the best."""

    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=LINE_BLOCKS))
    total: float = 0.0
    count: int = 0
    begin: int | None = None
    best: BestLoss = field(default_factory=BestLoss)
    blocks_since: int = 0

    def add(self, loss: float, step: int, epoch: float | None, patience_steps: float) -> None:
        """Add a finite loss. If lines are rarer than blocks, each line is a block."""
        if self.begin is not None and step - self.begin >= patience_steps / PATIENCE_BLOCKS:
            self.blocks.append(self.total / self.count)
            self.total, self.count, self.begin = 0.0, 0, None
            self._judge(step, epoch)
        if self.begin is None:
            self.begin = step
        self.total += loss
        self.count += 1

    def stagnation(self, step: int | None, epoch: float | None, patience_steps: float) -> Stagnation | None:
        """The time without improvement; at most the patience if there were too few lines since."""
        found = self.best.stagnation("loss", step, epoch)
        if found is None or self.blocks_since >= PATIENCE_BLOCKS or found.steps is None:
            return found
        return replace(found, steps=min(found.steps, int(patience_steps)), epochs=None)

    def _judge(self, step: int, epoch: float | None) -> None:
        if len(self.blocks) < MEAN_BLOCKS:
            return
        self.blocks_since += 1
        mean = statistics.fmean(list(self.blocks)[-MEAN_BLOCKS:])
        if (self.best.value is None or falls(self.blocks)) and self.best.add(mean, step, epoch):
            self.blocks_since = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "blocks": list(self.blocks),
            "open": [self.total, self.count, self.begin],
            "best": self.best.to_json(),
            "blocks_since": self.blocks_since,
        }

    @classmethod
    def from_json(cls, data: Any) -> LossCourse:
        """Raises TypeError, KeyError or ValueError for invalid data."""
        total, count, begin = data["open"]
        return cls(
            deque((float(mean) for mean in data["blocks"]), maxlen=LINE_BLOCKS),
            float(total), int(count), begin, BestLoss(*data["best"]), int(data["blocks_since"]),
        )  # fmt: skip


def falls(values: Sequence[float]) -> bool:
    """Whether the least-squares line through evenly spaced values falls significantly."""
    middle, mean = (len(values) - 1) / 2, statistics.fmean(values)
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    left = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope < -MIN_ERRORS * math.sqrt(left / (len(values) - 2) / spread)
