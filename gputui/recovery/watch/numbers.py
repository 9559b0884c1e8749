"""Detectors of anomalous numbers: NaN losses, loss and gradient spikes, slow ranks, growing memory.

Pure. Those of metrics are fed line by line and report once. The numbers of spikes, stragglers and
leaks were tuned until 10 000 simulated healthy hours gave no alarm: ``python -m
benchmarks.recovery``.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from gputui.recovery.watch.rules import Observation

# With mixed precision, the loss may be infinite for a step while the scaler finds its scale.
NON_FINITE_LINES = 5
BASELINE_LINES, LEAST_BASELINE = 200, 50
# Robust standard deviations (1.4826 × the median absolute deviation, Rousseeuw and Croux 1993).
SPIKE_DEVIATIONS = 10.0
MAD_TO_DEVIATION = 1.4826
LEVEL_DEVIATIONS = 3.0
# A rank at less than 0.7 of the others' speed for some windows: the threshold of NVRx.
STRAGGLER_SPEED, STRAGGLER_WINDOWS = 0.7, 3
# By chance, a sum of 20 is reached at most once in e^20 windows if the limit is half a deviation or
# more above the usual.
STRAGGLER_CERTAIN = 20.0
STRAGGLER_RECENT, STRAGGLER_LEAST_NOISE = 60, 0.05
# A single window counts at most as much as that of a rank that takes e times as long, so that a
# hiccup does not decide.
STRAGGLER_MOST = 1.0

# In less time, filling caches and the first epoch look like a leak.
LEAK_SECONDS, LEAK_SAMPLES, LEAK_BYTES = 900.0, 24, 256 << 20
# Reported if the memory would be full within a night, and within this share of the time that it was
# seen to grow: a cache that may take half of the remaining memory grows as steadily, but stops
# earlier.
HORIZON_SECONDS, HORIZON_SHARE = 12 * 3600.0, 0.8
# The limit is near if only this share of the reachable memory is left, or this much time.
NEAR_SHARE, NEAR_SECONDS = 0.10, 300.0
# A leak that began late is searched in the newest half, quarter … of the samples, down to this.
LEAST_RECENT_SECONDS = 3600.0
# Memory must grow from each part of the time to the next by at least this share of even growth:
# memory that levels off, or goes up and down, is no leak.
LEAK_PARTS, EVEN_SHARE = 8, 0.5


def deviation(values: Sequence[float] | deque[float], middle: float) -> float:
    """The robust standard deviation around a median."""
    return MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in values)


@dataclass(slots=True)
class NonFinite:
    """Detects a loss that is not finite for NON_FINITE_LINES consecutive lines."""

    count: int = 0
    began: int = 0

    def add(self, step: int, value: float) -> Observation | None:
        if math.isfinite(value):
            self.count = 0
            return None
        self.count += 1
        self.began = step if self.count == 1 else self.began
        if self.count != NON_FINITE_LINES:
            return None
        text = f"loss is {value} since step {self.began}, {self.count} lines in a row"
        return Observation("nan_loss", value, text=text, since=self.began)


@dataclass(slots=True)
class Levels:
    """A value over the whole run, as medians of blocks of lines."""

    blocks: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.begun.append(value)
        if len(self.begun) == LEAST_BASELINE:
            self.blocks.append(statistics.median(self.begun))
            self.begun = []

    def highest(self, otherwise: float) -> float:
        """The highest level after the first tenth of the run, in which nothing is settled yet."""
        return max(self.blocks[(len(self.blocks) + 9) // 10 :], default=otherwise)


@dataclass(slots=True)
class Spike:
    """Detects a value that rose far above its recent level and stays there for ``persistence``
    lines.

    It must exceed ``times`` the median, the median by SPIKE_DEVIATIONS, and every level since the
    first tenth of the run: a restarted learning rate brings the loss back to an earlier level.
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
        # The common cases need no sorting, and the most common one no scan of all values.
        if len(recent) < LEAST_BASELINE or (
            self.high == 0 and (value <= recent[0] or value <= recent[-1] or value <= max(recent))
        ):
            self._take(value)
            return None
        middle = statistics.median(recent)
        spread = deviation(recent, middle)
        limit = middle + max(SPIKE_DEVIATIONS * spread, (self.times - 1.0) * abs(middle))
        # Noise grows with the level.
        before = self.levels.highest(middle)
        noise = spread * max(1.0, abs(before / middle) if middle else 1.0)
        limit = max(limit, before + LEVEL_DEVIATIONS * noise)
        if value <= limit or limit == middle:
            self.high = 0
            self._take(value)
            return None
        self.high += 1
        self.began = step if self.high == 1 else self.began
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
    return Spike("loss_spike", "loss", times=2.0, persistence=30)


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
        own = {number: statistics.median(times) for number, times in self.reported.items()}
        self.reported = {}
        found = None
        for number, seconds in own.items():
            others = statistics.median(time for other, time in own.items() if other != number)
            if seconds <= 0 or others <= 0:
                continue
            if self.ranks.setdefault(number, _Ratios()).add(math.log(seconds / others)):
                what = f"takes {seconds:.3g} s, that of the others {others:.3g} s"
                text, limit = f"its own part of a step {what}", others / STRAGGLER_SPEED
                found = Observation("straggler", seconds, limit, text, since=step, rank=number)
        return found


@dataclass(slots=True)
class _Ratios:
    """Logarithms of a rank's relative time; ``windows``: how many in a row were too slow."""

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
        newly, self.is_reported = is_slow and not self.is_reported, self.is_reported or is_slow
        return newly


# --- memory -----------------------------------------------------------------------------------


class MemorySample(Struct, frozen=True):
    """Memory held (by a run, or by all) and available on the host, at ``at`` seconds."""

    at: float
    held_bytes: int
    available_bytes: int


class Leak(Struct, frozen=True):
    """Steady growth, and the time to the limit. ``is_near``: the run should save now."""

    bytes_per_second: float
    full_in_seconds: float
    is_near: bool


class Growth(NamedTuple):
    """Steady growth, seen since ``since`` (the time of a sample)."""

    bytes_per_second: float
    since: float


def steady_growth(samples: Sequence[MemorySample], parts: int, least_bytes: int = 0) -> Growth | None:
    """The growth of memory if it goes on in each of ``parts`` of the time; else None.

    The minima of the parts are compared, so that memory that is freed now and then, such as caches,
    does not count. Growth by less than ``least_bytes`` is none.
    """
    bounds = [len(samples) * part // parts for part in range(parts + 1)]

    def floor(part: int) -> MemorySample:
        return min(samples[bounds[part] : bounds[part + 1]], key=lambda each: each.held_bytes)

    first, last = floor(0), floor(parts - 1)
    growth = last.held_bytes - first.held_bytes
    if growth <= 0 or growth < least_bytes:
        return None  # the common case ends early
    floors = [first, *map(floor, range(1, parts - 1)), last]
    least = EVEN_SHARE * growth / (parts - 1)
    steps = (later.held_bytes - earlier.held_bytes for earlier, later in itertools.pairwise(floors))
    if any(step < least for step in steps):
        return None
    return Growth(growth / (last.at - first.at), first.at)


def find_leak(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak in an attempt's samples, which are in order; None if there is no relevant one."""
    while len(samples) >= LEAK_SAMPLES and samples[-1].at - samples[0].at >= LEAK_SECONDS:
        newest = samples[-1]
        growth = steady_growth(samples, LEAK_PARTS, LEAK_BYTES)
        if growth is not None:
            left = newest.available_bytes
            full_in = left / growth.bytes_per_second
            is_near = full_in <= NEAR_SECONDS or left <= NEAR_SHARE * (newest.held_bytes + left)
            seen_seconds = HORIZON_SHARE * (newest.at - growth.since)
            horizon = HORIZON_SECONDS if is_near else min(HORIZON_SECONDS, seen_seconds)
            if full_in <= horizon:
                return Leak(growth.bytes_per_second, full_in, is_near)
        samples = samples[len(samples) // 2 :]
        if newest.at - samples[0].at < LEAST_RECENT_SECONDS:
            break
    return None
