"""What the agent remembers of one living attempt in order to watch it."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.agent.jobs import Job
from gputui.gpu.model import GpuSample
from gputui.recovery.watch.activity import Doing, GpuActivity, doing
from gputui.recovery.watch.leak import Leak, MemorySample, find_leak
from gputui.recovery.watch.numbers import Anomaly, NonFinite, Spike, Straggler, gradient_spike, loss_spike
from gputui.recovery.watch.progress import LONGEST_GAP_SECONDS, ProgressLine, ProgressSilence, StepPace, StepProgress
from gputui.recovery.watch.verdict import Verdict, judge
from gputui.runs.attempt_processes import AttemptProcess
from gputui.runs.process_readings import ProcessReading, reaches_out, read_process
from gputui.store.attempts import Attempt
from gputui.store.metrics.queries import Cursor
from gputui.store.metrics.watched import WatchedLine, earlier_starts, ended_for_hang, newest_lines

LOOK_SECONDS = 2.0
# Of a run whose lines come faster than a thousand a second, or were all left by a former agent, the newest are looked
# at: a look must not keep the agent's loop busy for long.
LINES_PER_LOOK = 2000
HISTORY_LINES = 5000
# A quarter of an hour in samples of half a minute is what a leak needs; a night's worth is kept.
MEMORY_SAMPLES = 1500
POWER_SAMPLES = 200
# For so long every look must find the ranks stuck. With a short `hang_after` it is as short as that.
STUCK_SECONDS = 10.0
# So long where a look in the same silence found them at work: then its length says little, and work has pauses.
STUCK_AFTER_WORK_SECONDS = 24.0


@dataclass(slots=True)
class ProcessSnapshot:
    """One look at the processes of an attempt. ``ranks`` holds those that the launcher gave a rank, or, where there are
    none, all of them as rank None; ``others`` the rest, such as torchrun itself. ``is_closed``: no rank is known to be
    able to wait for anything beyond this machine."""

    at: float
    ranks: dict[int | None, list[ProcessReading]]
    others: list[ProcessReading]
    size: int
    is_closed: bool = False


@dataclass(slots=True)
class AttemptState:
    """One attempt. ``progress_at`` is the monotonic time of its last progress; ``stuck_since`` since when every look
    found it stuck; ``worked``: a look since then found it at work;
    ``together_at``: the last look that found several ranks at work; ``was_open``: a look of this silence found a
    connection beyond the machine; ``is_patient``: an earlier attempt was ended for a hang, so that ranks that
    wait get all the time that history explains; ``is_grouped``: its ranks were seen connected, and ``lone_looks`` found
    them without any connection, the last one at ``group_at``."""

    record: Attempt
    course: StepProgress
    progress_at: float
    cursor: Cursor = field(default_factory=dict)
    nonfinite: NonFinite = field(default_factory=NonFinite)
    spikes: tuple[Spike, Spike] = field(default_factory=lambda: (loss_spike(), gradient_spike()))
    straggler: Straggler = field(default_factory=Straggler)
    had_lines: bool = False
    last: ProcessSnapshot | None = None
    stuck_since: float | None = None
    worked: bool = False
    together_at: float = -math.inf
    was_open: bool = False
    is_patient: bool = False
    memory: deque[MemorySample] = field(default_factory=lambda: deque(maxlen=MEMORY_SAMPLES))
    memory_at: float = float("-inf")
    size: int = 1
    powers: dict[str, deque[float]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    pending: list[Anomaly] = field(default_factory=list)
    ending: str | None = None
    stack_dump: Job[None] | None = None
    metrics_search: Job[str | None] | None = None
    metrics_searched_at: float = -math.inf
    group_at: float = -math.inf
    lone_looks: int = 0
    is_grouped: bool = False

    @classmethod
    def begin(cls, connection: sqlite3.Connection, record: Attempt, clock: float, wall: float) -> AttemptState:
        """Start from what the store knows, so that the next agent need not learn it again."""
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
        # A script's time may count from elsewhere than 1970; such a time says nothing of the silence so far.
        if newest is not None and newest >= begun:
            watched.progress_at = clock - max(0.0, wall - newest)
        return watched

    def take(self, lines: Iterable[WatchedLine], clock: float, arrived_at: float | None = None) -> list[Anomaly]:
        """The attempt's next lines: notes progress, and tells what is wrong with the numbers. ``arrived_at`` (unix
        seconds) replaces the time of lines that have none."""
        own = [line for line in lines if line.attempt == self.record.number]
        if not own:
            return []
        self.had_lines = True
        before, silent = self.course.lines, clock - self.progress_at
        # What no agent has seen arrive is timed by the script's clock alone.
        at_most = LONGEST_GAP_SECONDS if arrived_at is None else silent + LOOK_SECONDS
        if self.course.add((_line(line, arrived_at) for line in own), at_most):
            if before and arrived_at is not None:
                # Lines that were held back in a buffer tell of shorter silences than there were.
                self.course.pace.add_gap(max(0.0, silent - LOOK_SECONDS), before)
            self.begin_anew(clock)
        return [finding for line in own for finding in self._numbers(line) if finding is not None]

    def begin_anew(self, clock: float) -> None:
        """Count silence from now on: there was progress, or none could have been seen."""
        self.progress_at = clock
        self.stuck_since = None
        self.worked = False
        self.together_at = -math.inf
        self.was_open = False
        self.last = None

    def _numbers(self, line: WatchedLine) -> list[Anomaly | None]:
        if line.event is not None or line.step is None:
            return []
        found: list[Anomaly | None] = []
        if not line.rank:
            loss, norm = line.values.get("loss"), line.values.get("grad_norm")
            if loss is not None:
                found += [self.nonfinite.add(line.step, loss), self.spikes[0].add(line.step, loss)]
            if norm is not None:
                found.append(self.spikes[1].add(line.step, norm))
        if line.rank is not None:
            self.size = max(self.size, line.rank + 1)
            found.append(self.straggler.add(line.rank, line.step, line.values, self.size))
        return found

    def note_power(self, samples: Mapping[str, GpuSample]) -> None:
        """What the GPUs draw while the run makes progress."""
        for uuid in self.record.gpus:
            sample = samples.get(uuid)
            if sample is not None and sample.power_watts is not None:
                self.powers.setdefault(uuid, deque(maxlen=POWER_SAMPLES)).append(sample.power_watts)

    def judged(
        self, look: ProcessSnapshot, samples: Mapping[str, GpuSample], quiet: ProgressSilence, hang_after: float
    ) -> tuple[Verdict | None, bool]:
        """What a look in an overdue silence makes of it, and whether that is certain: so that the attempt is stuck in
        every look for long enough. ``hang_after`` is the policy's, in seconds."""
        doings = self.doings(look, samples)
        if doings is None:
            return None, False
        if sum(not what.is_stuck for what in doings.values()) > 1:
            self.together_at = look.at
        self.was_open = self.was_open or not look.is_closed
        verdict = judge(
            quiet,
            doings,
            launcher_stopped=any(process.state == "T" for process in look.others),
            meets=self.had_lines or look.size > 1,
            alone_seconds=look.at - self.together_at,
            is_closed=not self.was_open,
            is_patient=self.is_patient,
        )
        if verdict is None or not verdict.is_stuck:
            self.stuck_since = None
            self.worked = self.worked or verdict is not None
            return verdict, False
        if self.stuck_since is None:
            self.stuck_since = look.at
        needed = min(STUCK_AFTER_WORK_SECONDS if self.worked else STUCK_SECONDS, hang_after)
        if not quiet.is_overdue:
            needed = verdict.for_seconds
        return verdict, look.at - self.stuck_since >= needed and (quiet.is_overdue or quiet.may_be_evident)

    def note_memory(self, sample: MemorySample) -> Leak | None:
        """The leak that the samples up to this one show."""
        self.memory.append(sample)
        return find_leak(tuple(self.memory))

    def doings(self, look: ProcessSnapshot, samples: Mapping[str, GpuSample]) -> dict[int | None, Doing] | None:
        """What each rank did since the last look; None if there was none before."""
        before, self.last = self.last, look
        if before is None:
            return None
        numbers: list[int | None] = list(range(look.size)) if look.size > 1 else list(look.ranks)
        return {
            rank: doing(
                before.ranks.get(rank, ()), look.ranks.get(rank, ()), look.at - before.at, self._gpu(rank, samples)
            )
            for rank in numbers
        }

    def _gpu(self, rank: int | None, samples: Mapping[str, GpuSample]) -> GpuActivity | None:
        uuids = self.record.gpus
        if not uuids:
            return None
        # A single process may use any of its GPUs: the busiest tells.
        own = uuids if rank is None else (uuids[rank % len(uuids)],)
        found = [(uuid, samples[uuid]) for uuid in own if uuid in samples]
        if not found:
            return None
        uuid, sample = max(found, key=lambda pair: pair[1].utilization_percent or 0.0)
        usual = statistics.median(self.powers[uuid]) if self.powers.get(uuid) else None
        share = sample.power_watts / usual if usual and sample.power_watts is not None else None
        return GpuActivity(sample.utilization_percent, sample.memory_utilization_percent, share)


def look_at(processes: Sequence[AttemptProcess], at: float, *, with_connections: bool = False) -> ProcessSnapshot:
    """Read an attempt's processes without its executor; also whether its ranks have connections beyond this machine."""
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
    is_closed = with_connections and not any(
        reaches_out(process.identity.pid) for process in processes if process.rank is not None
    )
    return ProcessSnapshot(at, ranks, others, size, is_closed)


def _line(line: WatchedLine, arrived_at: float | None = None) -> ProgressLine:
    return ProgressLine(line.step, arrived_at if line.at is None else line.at, line.event)
