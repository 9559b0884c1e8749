"""Detectors of anomalous numbers: NaN losses, loss and gradient spikes, slow ranks.

Pure. They are fed line by line and report once. The limits were tuned until 10 000 simulated
healthy hours gave no alarm: ``python -m benchmarks.recovery``.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputui.recovery.watch.rules import Observation
from gputui.store.metrics.roles import LOSS

# With mixed precision, the loss may be infinite for a step while the scaler finds its scale.
NON_FINITE_LINES = 5
# A logger may write null where it has not measured the loss, and begin to measure it less often.
NULL_LINES = 50
BASELINE_LINES = 200
LEAST_BASELINE = 50
LEVELS_KEPT = 400
# Robust standard deviations (1.4826 × the median absolute deviation, Rousseeuw and Croux 1993).
SPIKE_DEVIATIONS = 10.0
MAD_TO_DEVIATION = 1.4826
LEVEL_DEVIATIONS = 3.0
# A rank at less than 0.7 of the others' speed for some windows: the threshold of NVRx.
STRAGGLER_SPEED = 0.7
STRAGGLER_WINDOWS = 3
# By chance, a sum of 20 is reached at most once in e^20 windows if the limit is half a deviation or
# more above the usual.
STRAGGLER_CERTAIN = 20.0
STRAGGLER_RECENT = 60
STRAGGLER_LEAST_NOISE = 0.05
# A single window counts at most as much as that of a rank that takes e times as long, so that a
# hiccup does not decide.
STRAGGLER_MOST = 1.0


def deviation(values: Sequence[float] | deque[float], middle: float) -> float:
    """The robust standard deviation around a median."""
    return MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in values)


@dataclass(slots=True)
class NonFinite:
    """Detects a loss that is not finite for NON_FINITE_LINES consecutive lines, or for NULL_LINES of nulls that
    stand for NaN."""

    name: str = LOSS
    count: int = 0
    nulls: int = 0
    began: int = 0
    is_reported: bool = False

    def add(self, step: int, value: float, *, is_null: bool = False) -> Observation | None:
        if math.isfinite(value):
            self.count = 0
            self.nulls = 0
            self.is_reported = False
            return None
        self.count += 1
        self.nulls += is_null
        if self.count == 1:
            self.began = step
        is_certain = self.count - self.nulls >= NON_FINITE_LINES or self.count >= NULL_LINES
        if self.is_reported or not is_certain:
            return None
        self.is_reported = True
        text = f"{self.name} is {value} since step {self.began}, {self.count} lines in a row"
        return Observation("nan_loss", value, text=text, since=self.began)


@dataclass(slots=True)
class Levels:
    """A value over the whole run, as a bounded number of medians of blocks of lines."""

    blocks: list[float] = field(default_factory=list)
    lines_each: int = LEAST_BASELINE
    begun: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.begun.append(value)
        if len(self.begun) < self.lines_each:
            return
        self.blocks.append(statistics.median(self.begun))
        self.begun = []
        if len(self.blocks) == LEVELS_KEPT:
            self.blocks = list(map(max, self.blocks[::2], self.blocks[1::2]))
            self.lines_each *= 2

    def highest(self, otherwise: float) -> float:
        """The highest level after the first tenth of the run, in which nothing is settled yet."""
        return max(self.blocks[(len(self.blocks) + 9) // 10 :], default=otherwise)


@dataclass(slots=True)
class Spike:
    """Detects a value that rose far above its recent level and stays there.

    It must exceed a multiple of the median, the median by SPIKE_DEVIATIONS, and every level since the
    first tenth of the run: a restarted learning rate brings the loss back to an earlier level.

    Attributes:
        kind: of the observation.
        name: of the metric, for people.
        times: that multiple of the median.
        persistence: for so many lines.
        recent: the newest values at the usual level.
        levels: those of the whole run.
        high: the lines in a row that are too high.
        began: the step of the first of them.
    """

    kind: str
    name: str
    times: float
    persistence: int
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_LINES))
    levels: Levels = field(default_factory=Levels)
    high: int = 0
    began: int = 0

    def add(self, step: int, value: float) -> Observation | None:
        if not math.isfinite(value):
            return None
        recent = self.recent
        if len(recent) < LEAST_BASELINE:
            self._take(value)
            return None
        # The common cases need no sorting, and the most common one no scan of all values.
        is_usual = value <= recent[0] or value <= recent[-1] or value <= max(recent)
        if self.high == 0 and is_usual:
            self._take(value)
            return None
        middle = statistics.median(recent)
        spread = deviation(recent, middle)
        limit = middle + max(SPIKE_DEVIATIONS * spread, (self.times - 1.0) * abs(middle))
        # Noise grows with the level.
        before = self.levels.highest(middle)
        noise = spread
        if middle:
            noise *= max(1.0, abs(before / middle))
        limit = max(limit, before + LEVEL_DEVIATIONS * noise)
        if value <= limit or limit == middle:
            self.high = 0
            self._take(value)
            return None
        self.high += 1
        if self.high == 1:
            self.began = step
        if self.high != self.persistence:
            return None
        text = (
            f"{self.name} is {value:.4g} since step {self.began}, {self.high} lines in a row; "
            f"it was about {middle:.4g} before"
        )
        return Observation(self.kind, value, limit, text, since=self.began)

    def _take(self, value: float) -> None:
        self.recent.append(value)
        self.levels.add(value)


def loss_spike() -> Spike:
    """A loss of more than twice its median for 30 lines."""
    return Spike("loss_spike", LOSS, times=2.0, persistence=30)


def gradient_spike() -> Spike:
    """A gradient norm of more than ten times its median for 10 lines."""
    return Spike("gradient_spike", "grad_norm", times=10.0, persistence=10)


@dataclass(slots=True)
class Straggler:
    """Detects a rank that needs much longer for its own part of a step (step_time less comm_time).

    A window is complete when each rank has reported its times; the median of a rank's reports
    counts. The excess over the others' median is summed over the windows, in units of the rank's
    noise and less the limit, and never below zero (Page's cumulative sum, 1954). So the more the
    work of ranks varies, the longer it takes to be sure.
    """

    reported: dict[int, list[float]] = field(default_factory=dict)
    ranks: dict[int, _Ratios] = field(default_factory=dict)

    def add(self, rank: int, step: int | None, values: Mapping[str, float], size: int) -> Observation | None:
        """Add a line. ``size`` is the number of ranks; lines without both times are ignored."""
        busy = values.get("step_time", math.nan) - values.get("comm_time", math.nan)
        if size < 2 or not math.isfinite(busy):
            return None
        self.reported.setdefault(rank, []).append(max(busy, 0.0))
        if len(self.reported) < size:
            return None
        busy_times = {number: statistics.median(times) for number, times in self.reported.items()}
        self.reported = {}
        slowest = None
        for number, seconds in busy_times.items():
            others = statistics.median(time for another, time in busy_times.items() if another != number)
            if seconds <= 0 or others <= 0:
                continue
            if self.ranks.setdefault(number, _Ratios()).add(math.log(seconds / others)):
                what = f"takes {seconds:.3g} s, that of the others {others:.3g} s"
                text = f"its own part of a step {what}"
                limit = others / STRAGGLER_SPEED
                slowest = Observation("straggler", seconds, limit, text, since=step, rank=number)
        return slowest


@dataclass(slots=True)
class _Ratios:
    """Logarithms of a rank's relative time.

    ``total`` is Page's sum, ``windows`` how many in a row were too slow.
    """

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=STRAGGLER_RECENT))
    total: float = 0.0
    windows: int = 0
    is_reported: bool = False

    def add(self, ratio: float) -> bool:
        """Add a window; True when the rank is first certain to be slow."""
        self.recent.append(ratio)
        excess = min(ratio, STRAGGLER_MOST) + math.log(STRAGGLER_SPEED)
        self.windows = self.windows + 1 if excess > 0 else 0
        if self.total == 0 and excess <= 0:
            return False  # the common case needs no sorting
        noise = deviation(self.recent, statistics.median(self.recent))
        # Noise estimated from a few windows may be much too small.
        noise = max(noise, STRAGGLER_LEAST_NOISE, 1.5 / len(self.recent))
        self.total = max(0.0, self.total + excess / noise)
        is_slow = self.total > STRAGGLER_CERTAIN and self.windows >= STRAGGLER_WINDOWS
        newly = is_slow and not self.is_reported
        self.is_reported = self.is_reported or is_slow
        return newly
