"""Drives the detectors of a living run through a simulated one, as the agent does but in fast clock.

The agent looks every two seconds. Looks that cannot see anything (no new line, and a silence that history explains) are
passed over; all others are made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.recovery.healthy import Run, Stretch
from benchmarks.recovery.ranks_seen import MAY_IDLE, USUAL_WATTS, Seen
from gputui.agent.health.monitor import MEMORY_SECONDS
from gputui.recovery.policies import POLICIES
from gputui.recovery.watch.activity import LOOK_SECONDS
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.leaks import MemorySample
from gputui.recovery.watch.silence import LOOK_AFTER_SECONDS, StepPace, StepProgress, silence
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample

POLICY = POLICIES["standard"]
BEGAN_AT = 1_700_000_000.0
# What only remarks on a pause, and is right to: the run does work, and for longer than ever before.
REMARKS = frozenset({"slow", "paused"})


@dataclass(frozen=True)
class Alarm:
    """An action or message of the agent. ``at``: seconds since the run's start; ``overdue_at``:
    since when its silence was unexplained, for those that a silence leads to."""

    kind: str
    at: float
    text: str
    overdue_at: float | None = None

    @property
    def ends(self) -> bool:
        return ("hang" if self.kind == "rank_left_early" else self.kind) in POLICY.ends_on


@dataclass
class Watcher:
    """The agent's watch over one simulated run."""

    run: Run
    clock: float = 0.0
    wall: float = BEGAN_AT
    lines: int = 0
    looks: int = 0
    alarms: dict[str, Alarm] = field(default_factory=dict)
    pending: list[WatchedLine] = field(default_factory=list)
    memory_due: float = MEMORY_SECONDS

    def __post_init__(self) -> None:
        uuids = tuple(f"GPU-{rank}" for rank in range(self.run.ranks)) if self.run.gpus else ()
        self.watched = AttemptWatch(_record(uuids), StepProgress(StepPace()), 0.0)
        self.watched.activity.note_power({uuid: GpuSample(uuid, power_watts=USUAL_WATTS) for uuid in uuids})
        self.seen = Seen(random.Random(self.run.chance.random()), self.run.ranks, self.run.gpus)
        self.next_look = LOOK_SECONDS * self.run.chance.random()

    @property
    def is_ended(self) -> bool:
        return any(alarm.ends for alarm in self.alarms.values())

    def watch(self, stretches: Iterable[Stretch], kind: str | None = None) -> None:
        """Watch until the stretches are over, the agent ends the run, or it has reported ``kind``."""
        for stretch in stretches:
            self.pass_by(stretch)
            if self.is_ended or kind in self.alarms:
                return

    def pass_by(self, stretch: Stretch) -> None:
        """All looks of a stretch of time, and then its lines are written."""
        end = self.clock + stretch.seconds
        if stretch.activity == "suspended":
            # The agent sleeps with its runs.
            self.watched.restart_silence(end)
            self.next_look = max(self.next_look, end)
            self.memory_due = max(self.memory_due, end)
        elif self.next_look <= end:
            self._look_through(end, stretch)
        self.clock = end
        self.wall += stretch.seconds + stretch.clock_step
        self.lines += len(stretch.lines)
        for line in stretch.lines:
            at = None if line.at is None else self.wall
            self.pending.append(WatchedLine(1, line.rank, line.step, at=at, event=line.event, values=line.values))

    def _look_through(self, end: float, stretch: Stretch) -> None:
        watched = self.watched
        if self.pending:
            at = self.next_look
            findings = watched.take(self.pending, at, self.wall + at - self.clock)
            self.pending = []
            self.looks += 1
            self.next_look += LOOK_SECONDS
            for finding in findings:
                self._told(finding.kind, at, finding.text)
        quiet = silence(watched.progress, 0.0, POLICY.hang_after_seconds)
        overdue_at = looks_from = watched.progress_at + quiet.allowed_seconds
        if quiet.evident_seconds is not None:
            if stretch.activity in MAY_IDLE:
                looks_from = watched.progress_at + LOOK_AFTER_SECONDS
            else:
                # Looks before that find a rank at work.
                watched.activity.forget_looks()
        if looks_from < end:
            self._look_at_ranks(end, stretch, looks_from, overdue_at)
        if self.next_look <= end:
            self.next_look += LOOK_SECONDS * (math.floor((end - self.next_look) / LOOK_SECONDS) + 1)
        while self.memory_due <= end and not self.is_ended:
            self._look_at_memory(self.memory_due)
            self.memory_due += MEMORY_SECONDS

    def _look_at_ranks(self, end: float, stretch: Stretch, looks_from: float, overdue_at: float) -> None:
        watched = self.watched
        if self.next_look <= looks_from:
            self.next_look += LOOK_SECONDS * (math.floor((looks_from - self.next_look) / LOOK_SECONDS) + 1)
        while self.next_look <= end and not self.is_ended:
            at = self.next_look
            self.next_look += LOOK_SECONDS
            self.looks += 1
            quiet = silence(watched.progress, at - watched.progress_at, POLICY.hang_after_seconds)
            look, samples = self.seen.look(at, LOOK_SECONDS, stretch.activity)
            if not quiet.is_worth_a_look:
                watched.activity.forget_looks()
                continue
            verdict, is_certain = watched.assess(look, samples, quiet, POLICY.hang_after_seconds)
            if verdict is not None and is_certain:
                self._told(verdict.kind, at, f"{verdict.text} ({stretch.activity})", overdue_at)

    def _look_at_memory(self, at: float) -> None:
        memory = self.run.held_bytes(at)
        leak = self.watched.note_memory(MemorySample(at, int(memory), int(max(0.0, self.run.memory_host - memory))))
        if leak is not None:
            self._told("memory_leak", at, f"full in {leak.full_in_seconds:.0f} s")

    def _told(self, kind: str, at: float, text: str, overdue_at: float | None = None) -> None:
        self.alarms.setdefault(kind, Alarm(kind, at, text, overdue_at))


def _record(gpus: tuple[str, ...]) -> Attempt:
    return Attempt("simulated", 1, "running", params={}, gpus=gpus, launch={}, created_at=BEGAN_AT, started_at=BEGAN_AT)
