"""Healthy hours without a false alarm, and faults in the same hours that must be found."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.recovery.healthy import Activity, Broken, Run, Stretch
from benchmarks.recovery.watcher import REMARKS, Alarm, Watcher

FAULTS = ("hang", "nan_loss", "divergence", "loss_spike", "gradient_spike", "straggler", "memory_leak")
_TOLD_AS = {"divergence": "loss_spike"}
# How many lines a run has when it breaks: enough for every detector to know what is usual.
_LINES_BEFORE = (300, 2000)


@dataclass
class Healthy:
    """The reports about healthy runs. ``examples`` holds some alarms of each kind, in words."""

    hours: float = 0.0
    runs: int = 0
    lines: int = 0
    looks: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def false_alarms(self) -> int:
        return sum(self.alarms.values())


@dataclass(frozen=True)
class Found:
    """Of runs that broke in one way, how many were found out, and after how many seconds and lines. For hangs,
    ``worst_evidence_seconds`` is the longest time from when the silence was longer than explained."""

    fault: str
    runs: int
    found: int
    median_seconds: float | None
    median_lines: float | None
    worst_evidence_seconds: float | None = None


def healthy(hours: float, *, seed: int = 1) -> Healthy:
    """Watch so many simulated hours of healthy runs."""
    chance = random.Random(seed)
    totals = Healthy()
    while totals.hours < hours:
        run = Run(random.Random(chance.random()), chance.uniform(0.5, 24.0))
        watcher = Watcher(run)
        watcher.watch(run.stretches())
        totals.hours += watcher.clock / 3600
        totals.runs += 1
        totals.lines += watcher.lines
        totals.looks += watcher.looks
        for alarm in watcher.alarms.values():
            (totals.remarks if alarm.kind in REMARKS else totals.alarms)[alarm.kind] += 1
            if alarm.kind not in REMARKS and totals.alarms[alarm.kind] <= 3:
                totals.examples.append(f"{alarm.kind} after {alarm.at:.0f} s: {alarm.text}")
    return totals


def found(fault: str, runs: int, *, seed: int = 1) -> Found:
    """Break so many runs in one way, each at a moment of its own."""
    chance = random.Random(f"{fault} {seed}")
    seconds = []
    lines = []
    evidence = []
    for _ in range(runs):
        alarm, broke_at, lines_since = _broken(fault, chance)
        if alarm is not None:
            seconds.append(alarm.at - broke_at)
            lines.append(lines_since)
            if alarm.overdue_at is not None:
                # Where the silence had been explained already when it began, it is evidence from then on. Ranks that
                # tell by themselves need none.
                evidence.append(max(0.0, alarm.at - max(broke_at, alarm.overdue_at)))
    median_seconds = statistics.median(seconds) if seconds else None
    median_lines = statistics.median(lines) if lines else None
    return Found(
        fault,
        runs,
        len(seconds),
        median_seconds=median_seconds,
        median_lines=median_lines,
        worst_evidence_seconds=max(evidence, default=None),
    )


def _broken(fault: str, chance: random.Random) -> tuple[Alarm | None, float, int]:
    """The alarm that a run led to, when it broke, and the lines it wrote from then on."""
    while True:
        run = Run(random.Random(chance.random()), 1000.0)
        line_seconds = run.step_seconds * run.log_every
        if (fault != "straggler" or run.every_rank_tells) and (fault != "memory_leak" or line_seconds > 10.0):
            break
    breaks_at = chance.randint(*_LINES_BEFORE)
    kind = _TOLD_AS.get(fault, fault)
    watcher = Watcher(run)
    broke: list[float] = []

    def stretches() -> Iterator[Stretch]:
        for stretch in run.stretches():
            yield stretch
            if run.count >= breaks_at and not broke:
                broke.append(watcher.clock)
                watcher.alarms.clear()
                _break(run, fault, watcher.clock, chance)

    watcher.watch(stretches(), kind=kind)
    alarm = watcher.alarms.get(kind)
    return (alarm if broke else None), (broke[0] if broke else 0.0), run.count - breaks_at


def _hang(ranks: int, chance: random.Random) -> Activity:
    """A rank that was stopped, ranks that wait for each other, or one that waits for anything else."""
    if ranks == 1:
        return "wait"
    if chance.random() < 0.3:
        return "stopped"
    return "spin"


def _break(run: Run, fault: str, now: float, chance: random.Random) -> None:
    match fault:
        case "hang":
            run.broken = Broken(hang=_hang(run.ranks, chance))
        case "nan_loss":
            run.broken = Broken(nan=True)
        case "divergence":
            run.broken = Broken(diverges_since=run.count)
        case "loss_spike":
            run.broken = Broken(jumped=True)
        case "gradient_spike":
            run.broken = Broken(norm_factor=100.0)
        case "straggler":
            run.broken = Broken(slow_rank=chance.randrange(run.ranks))
        case "memory_leak":
            free_bytes = run.memory_host - run.held_bytes(now)
            run.broken = Broken(leaked_per_second=free_bytes / (3600 * chance.uniform(0.7, 12.0)), leaks_since=now)
