"""Numbers that go wrong while a run goes on: a loss that is no number, one that jumped, gradients that explode, a rank
that is slower than the others. Each detector is fed line by line and speaks once. Pure."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

# A loss of mixed precision may be infinite for a step while the scaler finds its scale.
NON_FINITE_LINES = 5
BASELINE_LINES = 200
LEAST_BASELINE = 50
# Robust standard deviations (1.4826 × the median absolute deviation, Rousseeuw and Croux 1993).
SPIKE_DEVIATIONS = 10.0
MAD_TO_DEVIATION = 1.4826
# A rank at less than 0.7 of the others' speed for some windows: the threshold of NVRx's straggler detection.
STRAGGLER_SPEED = 0.7
STRAGGLER_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a run's numbers show: nan_loss, loss_spike, gradient_spike or straggler. ``step`` is where it
    began."""

    kind: str
    text: str
    step: int | None = None
    rank: int | None = None


@dataclass(slots=True)
class NonFinite:
    """A loss that is not finite for some lines in a row."""

    count: int = 0
    began: int | None = None

    def add(self, step: int | None, value: float) -> Finding | None:
        if math.isfinite(value):
            self.count, self.began = 0, None
            return None
        self.count += 1
        if self.count == 1:
            self.began = step
        if self.count != NON_FINITE_LINES:
            return None
        where = "" if self.began is None else f" since step {self.began}"
        return Finding("nan_loss", f"loss is {value}{where}, {self.count} lines in a row", self.began)


@dataclass(slots=True)
class Spike:
    """A value that rose far above its recent course and stays there. Most jumps end by themselves: one counts only when
    it lasts ``persistence`` lines. It must exceed the median ``times`` over, and by SPIKE_DEVIATIONS."""

    kind: str
    name: str
    times: float
    persistence: int
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_LINES))
    high: int = 0
    began: int | None = None

    def add(self, step: int | None, value: float) -> Finding | None:
        if not math.isfinite(value):
            return None
        if len(self.recent) < LEAST_BASELINE:
            self.recent.append(value)
            return None
        if self.high == 0 and value <= max(self.recent):
            # The common case costs no sorting.
            self.recent.append(value)
            return None
        middle = statistics.median(self.recent)
        spread = MAD_TO_DEVIATION * statistics.median(abs(one - middle) for one in self.recent)
        limit = middle + max(SPIKE_DEVIATIONS * spread, (self.times - 1.0) * abs(middle))
        if value <= limit or limit == middle:
            self.high, self.began = 0, None
            self.recent.append(value)
            return None
        self.high += 1
        if self.high == 1:
            self.began = step
        if self.high != self.persistence:
            return None
        where = "" if self.began is None else f" since step {self.began}"
        text = f"{self.name} is {value:.4g}{where}, {self.high} lines in a row; it was about {middle:.4g} before"
        return Finding(self.kind, text, self.began)


def loss_spike() -> Spike:
    """A loss of more than twice its median for 30 lines."""
    return Spike("loss_spike", "loss", times=2.0, persistence=30)


def gradient_spike() -> Spike:
    """A gradient norm of more than ten times its median for 10 lines."""
    return Spike("gradient_spike", "grad_norm", times=10.0, persistence=10)


@dataclass(slots=True)
class Straggler:
    """A rank that needs much longer for its own part of a step (step_time less comm_time) than the others.

    A window is over when every rank has told its times anew; what a rank told several times in it is averaged.
    """

    told: dict[int, list[float]] = field(default_factory=dict)
    slow: int | None = None
    windows: int = 0

    def add(self, rank: int, step: int | None, values: Mapping[str, float], size: int) -> Finding | None:
        """``size`` is how many ranks there are. Lines without both times say nothing."""
        step_time, comm_time = values.get("step_time"), values.get("comm_time")
        if size < 2 or step_time is None or comm_time is None or not math.isfinite(step_time - comm_time):
            return None
        self.told.setdefault(rank, []).append(max(step_time - comm_time, 0.0))
        if len(self.told) < size:
            return None
        own = {number: statistics.fmean(times) for number, times in self.told.items()}
        self.told = {}
        slowest = max(own, key=lambda number: own[number])
        others = statistics.median(time for number, time in own.items() if number != slowest)
        if own[slowest] <= 0 or others / own[slowest] >= STRAGGLER_SPEED:
            self.slow, self.windows = None, 0
            return None
        self.windows = self.windows + 1 if slowest == self.slow else 1
        self.slow = slowest
        if self.windows != STRAGGLER_WINDOWS:
            return None
        text = f"its own part of a step takes {own[slowest]:.3g} s, that of the others {others:.3g} s"
        return Finding("straggler", text, step, slowest)
