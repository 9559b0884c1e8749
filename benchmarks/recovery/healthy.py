"""Healthy training runs of many kinds, simulated line by line: what a run writes, when, and what it does meanwhile; and
what can go wrong in them.

Figures are drawn once for each run and then for each line. Nothing here knows the detectors or their limits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gputui.store.metrics.watched import WatchedLine

Activity = Literal[
    "start", "step", "compile", "compile alone", "validate", "validate alone", "save", "save sharded", "read data",
    "prepare data", "await network", "crowded", "suspended", "finish", "wait", "spin", "stopped",
]  # fmt: skip
"""What the ranks do in a stretch of time: `wait`, `spin` and `stopped` are those of a run that hangs."""

LossKind = Literal["language", "classify", "memorise", "reward", "adversarial"]
LINES_AT_MOST = 10_000
LONGEST_LINE_SECONDS = 300.0
GIB = 1 << 30


@dataclass(frozen=True)
class Stretch:
    """So many seconds of doing this, and the lines that are written at its end. ``clock_step`` is by how much the wall
    clock was set meanwhile."""

    seconds: float
    activity: Activity
    lines: tuple[WatchedLine, ...] = ()
    clock_step: float = 0.0


@dataclass
class Broken:
    """The faults of a run; all are off unless set. ``leaks_since`` is in seconds from the run's
    start."""

    nan: bool = False
    diverges_since: int | None = None
    jumped: bool = False
    norm_factor: float = 1.0
    slow_rank: int | None = None
    leaked_per_second: float = 0.0
    leaks_since: float = 0.0
    hang: Activity | None = None


SLOW_FACTOR = 2.0


@dataclass
class Run:
    """One run's nature. Times in seconds; shares and probabilities between 0 and 1."""

    chance: random.Random
    hours: float
    broken: Broken = field(default_factory=Broken)
    ranks: int = field(init=False)
    gpus: bool = field(init=False)
    step_seconds: float = field(init=False)
    log_every: int = field(init=False)
    noise: float = field(init=False)
    rank_noise: float = field(init=False)
    every_rank_tells: bool = field(init=False)
    rank_zero_every: int = field(init=False)
    loss_kind: LossKind = field(init=False)

    def __post_init__(self) -> None:
        draw = self.chance
        self.ranks = draw.choice((1, 1, 2, 4, 8))
        self.gpus = draw.random() < 0.8
        self.step_seconds = 10 ** draw.uniform(-2.0, math.log10(60.0))
        fits = [count for count in (1, 1, 10, 50, 100) if self.step_seconds * count <= LONGEST_LINE_SECONDS]
        self.log_every = draw.choice(fits)
        self.noise = draw.choice((0.01, 0.05, 0.1, 0.3))
        self.rank_noise = draw.choice((0.005, 0.02, 0.1, 0.2, 0.4))
        self.every_rank_tells = self.ranks > 1 and draw.random() < 0.4
        self.rank_zero_every = draw.choice((1, 1, 5, 20))
        self.loss_kind = draw.choice(("language", "language", "classify", "memorise", "reward", "adversarial"))
        self.tells_time = draw.random() < 0.9
        self.writes_events = draw.random() < 0.4
        self.buffered_lines = draw.choice((1, 1, 1, 1, 1, 1, 1, 20, 80))
        self.mixed_precision = draw.random() < 0.3
        self.drift = draw.uniform(0.0, 0.2)
        self.drift_phase = draw.uniform(0.0, math.tau)
        self.validate_every = int(10 ** draw.uniform(1.7, 3.3))
        self.validate_seconds = draw.lognormvariate(math.log(60.0), 1.2)
        self.validates_alone = self.ranks > 1 and draw.random() < 0.2
        self.save_every = int(10 ** draw.uniform(1.7, 3.3))
        self.save_seconds = draw.lognormvariate(math.log(8.0), 1.0)
        self.saves_sharded = draw.random() < 0.3
        self.hiccups_an_hour = draw.choice((0.0, 0.2, 2.0))
        self.restart_every = draw.choice((0, 0, int(10 ** draw.uniform(2.3, 3.7))))
        self.epoch_every = int(10 ** draw.uniform(2.0, 3.7))
        self.epoch_jump = draw.uniform(0.85, 1.35)
        self.settles = 10 ** draw.uniform(1.3, 3.0)
        self.gradient_noise = draw.uniform(0.1, 0.8)
        self.norm_early = draw.choice((1.0, 5.0, 30.0))
        self.memory_begins = draw.uniform(0.5, 20.0) * GIB
        self.memory_host = draw.choice((32, 64, 256, 1024)) * GIB
        # A cache that its owner lets grow has room: half of what is there.
        self.cache_bytes = draw.choice((0.0, 0.1, 0.5)) * (self.memory_host - self.memory_begins) * draw.random()
        self.cache_seconds = draw.lognormvariate(math.log(1200.0), 1.0)
        self.cache_falls_every = draw.choice((0.0, 0.0, draw.uniform(1.0, 6.0) * self.cache_seconds))
        self.count = 0
        self.norm_burst = self.loss_bump = 0
        self.height = 1.0

    # --- time -----------------------------------------------------------------------------------------------------

    def stretches(self) -> Iterator[Stretch]:
        """The run from its start to its end."""
        draw = self.chance
        spent = 0.0
        yield from self._starting()
        waiting: list[WatchedLine] = []
        while spent < self.hours * 3600 and self.count < LINES_AT_MOST:
            for stretch in (*self._pauses(spent), self._stepping(spent)):
                if self.broken.hang is not None:
                    yield Stretch(24 * 3600.0, self.broken.hang)
                    return
                spent += stretch.seconds
                lines = stretch.lines
                if self.buffered_lines > 1 and lines:
                    waiting += lines
                    lines = ()
                    if self.count % self.buffered_lines == 0:
                        lines = tuple(waiting)
                        waiting = []
                yield Stretch(stretch.seconds, stretch.activity, lines, stretch.clock_step)
        yield Stretch(draw.lognormvariate(math.log(10.0), 1.0), "save", self._event("end"))

    def _starting(self) -> Iterator[Stretch]:
        draw = self.chance
        yield Stretch(min(1800.0, draw.lognormvariate(math.log(25.0), 1.2)), "start")
        if draw.random() < 0.4:
            alone = self.ranks > 1 and draw.random() < 0.3
            activity: Activity = "compile alone" if alone else "compile"
            yield Stretch(min(3600.0, draw.lognormvariate(math.log(120.0), 1.0)), activity)

    def _pauses(self, spent: float) -> Iterator[Stretch]:
        """The pauses before the next line."""
        draw = self.chance
        count = self.count
        if count and count % self.validate_every == 0:
            # Of other lengths: more data, a fuller disk, a first one that compiles.
            seconds = self.validate_seconds * draw.lognormvariate(0.0, 0.4)
            activity: Activity = "validate alone" if self.validates_alone else "validate"
            yield Stretch(min(seconds, 1500.0), activity, self._event("validation"))
        if count and count % self.save_every == 0:
            seconds = self.save_seconds * draw.lognormvariate(0.0, 0.6)
            yield Stretch(
                min(seconds, 1500.0), "save sharded" if self.saves_sharded else "save", self._event("checkpoint")
            )
        hours = self.step_seconds * self.log_every / 3600
        if draw.random() < self.hiccups_an_hour * hours:
            kind = draw.random()
            if kind < 0.4:
                yield Stretch(min(900.0, draw.lognormvariate(math.log(10.0), 1.3)), "read data")
            elif kind < 0.8:
                yield Stretch(min(900.0, draw.lognormvariate(math.log(10.0), 1.3)), "prepare data")
            else:
                # Longer than a minute, libraries give up and try anew.
                yield Stretch(min(60.0, draw.lognormvariate(math.log(3.0), 1.0)), "await network")
        if draw.random() < 0.01 * hours:
            yield Stretch(draw.uniform(60.0, 8 * 3600.0), "suspended")
            # Disks and connections need some time until all goes on.
            yield Stretch(draw.uniform(0.0, 30.0), "await network")
        if draw.random() < 0.01 * hours:
            yield Stretch(0.0, "step", clock_step=draw.choice((-3600.0, -30.0, 30.0, 3600.0, 1e6)))

    def _stepping(self, spent: float) -> Stretch:
        """The steps up to the next line, and that line."""
        draw = self.chance
        warm = 1.0 + self.drift * math.sin(math.tau * spent / 21600.0 + self.drift_phase)
        factor = math.exp(draw.gauss(0.0, self.noise / math.sqrt(self.log_every))) * warm
        activity: Activity = "step"
        if draw.random() < 0.002:
            factor *= min(50.0, draw.paretovariate(1.5))
            activity = draw.choice(("step", "crowded"))
        if self.count < 10 and draw.random() < 0.3:
            factor *= draw.uniform(1.0, 20.0)
            activity = "compile"
        self.count += 1
        seconds = self.step_seconds * factor
        return Stretch(seconds * self.log_every, activity, self._lines(seconds))

    # --- lines ----------------------------------------------------------------------------------------------------

    def _event(self, name: str) -> tuple[WatchedLine, ...]:
        if not self.writes_events:
            return ()
        at = 0.0 if self.tells_time else None
        return (WatchedLine(1, 0, self.count * self.log_every, at=at, event=name, values={}),)

    def _lines(self, seconds: float) -> tuple[WatchedLine, ...]:
        """The lines of one step; their times are filled in when they are written, so that 0.0 stands for now."""
        step = self.count * self.log_every
        at = 0.0 if self.tells_time else None
        values = {"loss": self.loss(), "grad_norm": self.norm()}
        if not self.every_rank_tells:
            return (WatchedLine(1, None if self.ranks == 1 else 0, step, at=at, event=None, values=values),)
        compute_seconds = [0.7 * seconds * math.exp(self.chance.gauss(0.0, self.rank_noise)) for _ in range(self.ranks)]
        if self.broken.slow_rank is not None:
            compute_seconds[self.broken.slow_rank] *= SLOW_FACTOR
        whole = max(compute_seconds) * 1.1
        lines = []
        for rank, mine in enumerate(compute_seconds):
            if rank == 0 and self.count % self.rank_zero_every:
                continue
            times = {"step_time": whole, "comm_time": whole - mine}
            lines.append(
                WatchedLine(1, rank, step, at=at, event=None, values={**values, **times} if rank == 0 else times)
            )
        return tuple(lines)

    def loss(self) -> float:
        """The loss of the next line."""
        value = self._healthy_loss()
        broken = self.broken
        if broken.nan:
            return math.nan
        if broken.diverges_since is not None:
            return abs(value) * 1.05 ** min(200, self.count - broken.diverges_since) + 0.01
        return 10.0 * abs(value) + 10.0 if broken.jumped else value

    def _healthy_loss(self) -> float:
        """Losses of several kinds: noise, jumps at epochs and restarts of the learning rate, short bumps."""
        draw = self.chance
        count = self.count
        if self.mixed_precision and count <= 3:
            return math.inf
        if draw.random() < 1e-5:
            # A batch in which nothing counts.
            return math.nan
        settled = math.exp(-((count / self.settles) ** 0.5))
        if count % self.epoch_every == 0:
            self.height *= draw.choice((1.0, self.epoch_jump, 1 / self.epoch_jump))
            self.height = min(2.0, max(0.5, self.height))
        bump = 1.0
        if self.loss_bump:
            self.loss_bump -= 1
            bump = 3.0
        elif draw.random() < 5e-4:
            self.loss_bump = draw.randint(1, 12)
        # After a restart the loss comes back to where the high learning rate had held it before.
        since = count % self.restart_every if self.restart_every else count
        annealed = math.exp(-2.0 * since / self.restart_every) if self.restart_every else settled
        match self.loss_kind:
            case "language":
                return (2.0 + 8.0 * settled + 0.3 * annealed) * self.height * bump * math.exp(draw.gauss(0.0, 0.04))
            case "classify":
                return (0.02 + 2.0 * settled + 0.5 * annealed) * self.height * bump * math.exp(draw.gauss(0.0, 0.3))
            case "memorise":
                return (1e-4 + settled + 0.01 * annealed) * self.height * bump * math.exp(draw.gauss(0.0, 0.9))
            case "reward":
                return draw.gauss(0.0, 0.1) - 0.5 * (1.0 - settled)
            case "adversarial":
                return self.height * (1.0 + 0.4 * math.sin(count / 150.0)) * math.exp(draw.gauss(0.0, 0.2))

    def norm(self) -> float:
        """Large at first, with a tail, infinite while mixed precision looks for its scale, and short bursts."""
        draw = self.chance
        count = self.count
        if self.mixed_precision and count <= 16:
            return math.inf
        burst = 1.0
        if self.norm_burst:
            self.norm_burst -= 1
            burst = 30.0
        elif draw.random() < 1e-3:
            self.norm_burst = draw.randint(1, 5)
        early = 1.0 + self.norm_early * math.exp(-count / self.settles)
        restarted = 1.0
        if self.restart_every:
            restarted += 2.0 * math.exp(-(count % self.restart_every) / 100.0)
        return self.broken.norm_factor * early * restarted * burst * math.exp(draw.gauss(0.0, self.gradient_noise))

    # --- memory ---------------------------------------------------------------------------------------------------

    def held_bytes(self, seconds: float) -> float:
        """Private memory of the run's processes after so many seconds."""
        cached = self.cache_bytes
        if self.cache_falls_every:
            cached *= min(1.0, (seconds % self.cache_falls_every) / self.cache_seconds)
        else:
            cached *= min(1.0, seconds / self.cache_seconds)
        leaked = self.broken.leaked_per_second * max(0.0, seconds - self.broken.leaks_since)
        return (self.memory_begins + cached) * (1.0 + self.chance.gauss(0.0, 0.003)) + leaked
