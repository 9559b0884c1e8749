"""The health state of one live attempt: its progress, the trend of its numbers, and what its processes do."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.agent.jobs import Job
from gputui.recovery.watch.activity import Doing, GpuActivity, doing
from gputui.recovery.watch.leak import Leak, MemorySample, find_leak
from gputui.recovery.watch.numbers import Anomaly, NonFinite, Spike, Straggler, gradient_spike, loss_spike
from gputui.recovery.watch.progress import LONGEST_GAP_SECONDS, ProgressLine, ProgressSilence, StepPace, StepProgress
from gputui.recovery.watch.verdict import Verdict, judge
from gputui.runs.process_readings import ProcessReading, reaches_out, read_process, sockets_of
from gputui.runs.processes import AttemptProcess
from gputui.store.attempts import Attempt
from gputui.store.metrics.queries import Cursor
from gputui.store.metrics.watched import WatchedLine, earlier_starts, ended_for_hang, newest_lines
from gputui.store.series import GpuSample

LOOK_SECONDS = 2.0
# Only the newest lines are read, so that a check is short even if lines arrive faster than a thousand a second.
LINES_PER_LOOK = 2000
HISTORY_LINES = 5000
# A leak shows in a quarter of an hour of samples taken every 30 s; this is enough for a night.
MEMORY_SAMPLES = 1500
POWER_SAMPLES = 200
# Ranks that write lines have written some by then.
LONE_RANK_LINES = 20
# How long every check must find the ranks stuck, or `hang_after` if that is shorter.
STUCK_SECONDS = 10.0
# The same if a check during this silence found them at work, because work has pauses.
STUCK_AFTER_WORK_SECONDS = 24.0


@dataclass(slots=True)
class ProcessSnapshot:
    """The processes of an attempt at one time (monotonic seconds). ``ranks`` are those with a rank, or without any
    such, all of them as rank None; ``others`` are the rest, such as torchrun. ``is_closed``: no rank has a connection
    to another machine or to a program that is not the attempt's."""

    at: float
    ranks: dict[int | None, list[ProcessReading]]
    others: list[ProcessReading]
    size: int
    is_closed: bool = False


@dataclass(slots=True)
class AttemptState:
    """The health state of one attempt. Times are monotonic seconds. A silence is the time since the last progress."""

    record: Attempt
    course: StepProgress
    # The last progress.
    progress_at: float
    cursor: Cursor = field(default_factory=dict)
    nonfinite: NonFinite = field(default_factory=NonFinite)
    spikes: tuple[Spike, Spike] = field(default_factory=lambda: (loss_spike(), gradient_spike()))
    straggler: Straggler = field(default_factory=Straggler)
    had_lines: bool = False
    last: ProcessSnapshot | None = None
    # Since when every check found the attempt stuck.
    stuck_since: float | None = None
    # Whether a check during this silence found it at work.
    worked: bool = False
    # The last check that found several ranks at work.
    together_at: float = -math.inf
    # Whether a check during this silence found a connection to a program that is not the attempt's.
    was_open: bool = False
    # An earlier attempt was ended for a hang: waiting ranks get all the time that history explains.
    is_patient: bool = False
    memory: deque[MemorySample] = field(default_factory=lambda: deque(maxlen=MEMORY_SAMPLES))
    memory_at: float = float("-inf")
    size: int = 1
    powers: dict[str, deque[float]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    pending: list[Anomaly] = field(default_factory=list)
    ending: str | None = None
    stack_dump: Job[tuple[int | None, str] | None] | None = None
    metrics_search: Job[str | None] | None = None
    metrics_searched_at: float = -math.inf
    # The last check for a process group, and how many of them found ranks without connections.
    group_at: float = -math.inf
    ungrouped_checks: int = 0
    group_search: Job[bool] | None = None
    is_grouped: bool = False
    # Whether it was compared where the attempt's steps begin and where its checkpoint ends.
    is_start_known: bool = False
    # The lines with a step, and the ranks that they name; None for none.
    step_lines: int = 0
    line_ranks: set[int | None] = field(default_factory=set)

    @classmethod
    def begin(cls, connection: sqlite3.Connection, record: Attempt, clock: float, wall: float) -> AttemptState:
        """The state derived from stored lines, so that a new agent does not start from nothing."""
        pace = StepPace()
        for seconds in earlier_starts(connection, record.run_id, record.number):
            pace.add_start(seconds)
        watched = cls(
            record, StepProgress(pace), clock, is_patient=ended_for_hang(connection, record.run_id, record.number)
        )
        lines, watched.cursor = newest_lines(connection, record.run_id, {}, HISTORY_LINES)
        watched.had_lines = bool(lines)
        for number in sorted({line.attempt for line in lines if line.attempt < record.number}):
            StepProgress(pace).add(map(_line, (line for line in lines if line.attempt == number)))
        watched.pending = watched.take(lines, clock)
        begun = record.started_at or record.created_at
        newest = watched.course.at if watched.course.lines else begun
        # A script's clock may not count from 1970; such a time says nothing about the silence so far.
        if newest is not None and newest >= begun:
            watched.progress_at = clock - max(0.0, wall - newest)
        return watched

    def take(self, lines: Iterable[WatchedLine], clock: float, arrived_at: float | None = None) -> list[Anomaly]:
        """Take in the attempt's next lines; return anomalies of their numbers. ``arrived_at`` (unix seconds) replaces
        missing timestamps."""
        own = [line for line in lines if line.attempt == self.record.number]
        if not own:
            return []
        self.had_lines = True
        before, silent = self.course.lines, clock - self.progress_at
        # Lines that arrived without an agent have only the script's timestamps.
        at_most = LONGEST_GAP_SECONDS if arrived_at is None else silent + LOOK_SECONDS
        if self.course.add((_line(line, arrived_at) for line in own), at_most):
            if before and arrived_at is not None:
                # Timestamps of buffered lines hide the silence before their arrival.
                self.course.pace.add_gap(max(0.0, silent - LOOK_SECONDS), before)
            self.restart_silence(clock)
        return [finding for line in own for finding in self._numbers(line) if finding is not None]

    def restart_silence(self, clock: float) -> None:
        """Measure the silence from now on, after progress or after a time when none could be seen."""
        self.progress_at = clock
        self.stuck_since = None
        self.worked = False
        self.together_at = -math.inf
        self.was_open = False
        self.last = None

    def _numbers(self, line: WatchedLine) -> list[Anomaly | None]:
        if line.event is not None or line.step is None:
            return []
        self.step_lines += 1
        self.line_ranks.add(line.rank)
        anomalies: list[Anomaly | None] = []
        if not line.rank:
            loss, norm = line.values.get("loss"), line.values.get("grad_norm")
            if loss is not None:
                anomalies += [self.nonfinite.add(line.step, loss), self.spikes[0].add(line.step, loss)]
            if norm is not None:
                anomalies.append(self.spikes[1].add(line.step, norm))
        if line.rank is not None:
            self.size = max(self.size, line.rank + 1)
            anomalies.append(self.straggler.add(line.rank, line.step, line.values, self.size))
        return anomalies

    @property
    def lone_rank(self) -> int | None:
        """The rank beyond 0 that all lines name, if one does and there are enough of them; else None."""
        (rank,) = self.line_ranks if len(self.line_ranks) == 1 else (None,)
        return rank or None if self.step_lines >= LONE_RANK_LINES else None

    def note_power(self, samples: Mapping[str, GpuSample]) -> None:
        """Record the GPUs' power while the run makes progress."""
        for uuid in self.record.gpus:
            sample = samples.get(uuid)
            if sample is not None and sample.power_watts is not None:
                self.powers.setdefault(uuid, deque(maxlen=POWER_SAMPLES)).append(sample.power_watts)

    def assess(
        self, snapshot: ProcessSnapshot, samples: Mapping[str, GpuSample], quiet: ProgressSilence, hang_after: float
    ) -> tuple[Verdict | None, bool]:
        """The verdict on a silence, and whether it is certain, which means that every check found the attempt stuck for
        long enough. ``hang_after`` is the policy's, in seconds."""
        doings = self._doings(snapshot, samples)
        if doings is None:
            return None, False
        if sum(not doing.is_stuck for doing in doings.values()) > 1:
            self.together_at = snapshot.at
        self.was_open = self.was_open or not snapshot.is_closed
        verdict = judge(
            quiet,
            doings,
            launcher_stopped=any(process.state == "T" for process in snapshot.others),
            meets=self.had_lines or snapshot.size > 1,
            alone_seconds=snapshot.at - self.together_at,
            is_closed=not self.was_open,
            is_patient=self.is_patient,
        )
        if verdict is None or not verdict.is_stuck:
            self.stuck_since = None
            self.worked = self.worked or verdict is not None
            return verdict, False
        if self.stuck_since is None:
            self.stuck_since = snapshot.at
        needed = min(STUCK_AFTER_WORK_SECONDS if self.worked else STUCK_SECONDS, hang_after)
        if not quiet.is_overdue:
            needed = verdict.for_seconds
        return verdict, snapshot.at - self.stuck_since >= needed and (quiet.is_overdue or quiet.may_be_evident)

    def note_memory(self, sample: MemorySample) -> Leak | None:
        """Add a sample; return the leak that the samples show, if any."""
        self.memory.append(sample)
        return find_leak(tuple(self.memory))

    def _doings(self, snapshot: ProcessSnapshot, samples: Mapping[str, GpuSample]) -> dict[int | None, Doing] | None:
        """What each rank did since the last snapshot; None for the first one."""
        before, self.last = self.last, snapshot
        if before is None:
            return None
        numbers: list[int | None] = list(range(snapshot.size)) if snapshot.size > 1 else list(snapshot.ranks)
        seconds = snapshot.at - before.at
        return {
            rank: doing(
                before.ranks.get(rank, ()), snapshot.ranks.get(rank, ()), seconds, self._gpu_activity(rank, samples)
            )
            for rank in numbers
        }

    def _gpu_activity(self, rank: int | None, samples: Mapping[str, GpuSample]) -> GpuActivity | None:
        uuids = self.record.gpus
        if not uuids:
            return None
        # A single process may use any of its GPUs: the busiest counts.
        own = uuids if rank is None else (uuids[rank % len(uuids)],)
        readings = [(uuid, samples[uuid]) for uuid in own if uuid in samples]
        if not readings:
            return None
        uuid, sample = max(readings, key=lambda pair: pair[1].utilization_percent or 0.0)
        usual = statistics.median(self.powers[uuid]) if self.powers.get(uuid) else None
        share = sample.power_watts / usual if usual and sample.power_watts is not None else None
        return GpuActivity(sample.utilization_percent, sample.memory_utilization_percent, share)


def take_snapshot(processes: Sequence[AttemptProcess], at: float, *, with_connections: bool = False) -> ProcessSnapshot:
    """Read an attempt's processes, ``with_connections`` also whether its ranks have connections beyond it."""
    ranks: dict[int | None, list[ProcessReading]] = {}
    others: list[ProcessReading] = []
    size = 1
    for process in processes:
        reading = read_process(process.identity)
        if reading is None:
            continue
        if process.rank is None:
            others.append(reading)
        else:
            ranks.setdefault(process.rank, []).append(reading)
            size = max(size, process.rank + 1, process.local_world_size or 1)
    if not ranks and others:
        return ProcessSnapshot(at, {None: others}, [], 1)
    own = sockets_of(process.pid for process in processes) if with_connections else set()
    is_closed = with_connections and not any(
        reaches_out(process.pid, own) for process in processes if process.rank is not None
    )
    return ProcessSnapshot(at, ranks, others, size, is_closed)


def _line(line: WatchedLine, arrived_at: float | None = None) -> ProgressLine:
    return ProgressLine(line.step, arrived_at if line.at is None else line.at, line.event)
