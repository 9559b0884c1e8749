"""The watch over one live attempt: its lines, processes and GPUs go in, observations come out.

Pure; times are monotonic seconds unless stated. A silence is the time since the last progress.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gputui.recovery.watch.hangs import (
    BUSY_NETWORK_BYTES_PER_SECOND,
    GpuActivity,
    RankActivity,
    doing,
    is_stuck,
    judge,
    younger_than,
)
from gputui.recovery.watch.leaks import Leak, MemorySample, find_leak
from gputui.recovery.watch.metric_history import MetricHistory
from gputui.recovery.watch.numbers import NonFinite, Spike, Straggler, gradient_spike, loss_spike
from gputui.recovery.watch.rules import Observation
from gputui.recovery.watch.silence import LONGEST_GAP_SECONDS, ProgressSilence, StepProgress
from gputui.runs.process_readings import ProcessReading
from gputui.store.attempts import Attempt
from gputui.store.metrics.roles import LOSS, MetricRoles
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample

LOOK_SECONDS = 2.0
# A leak shows in a quarter of an hour of samples taken every 30 s; this is enough for a night.
MEMORY_SAMPLES = 1500
POWER_SAMPLES = 200
# Ranks that write lines have written some by then.
LONE_RANK_LINES = 20
# How long every check must find the ranks stuck, or `hang_after` if that is shorter; and the same
# if a check during this silence found them at work, because work has pauses.
STUCK_SECONDS = 10.0
STUCK_AFTER_WORK_SECONDS = 24.0
# A silence counts from when the last step was read and looked at, on a busy machine so much later.
STEP_NOTICED_SECONDS = 5.0
# Heartbeats come once in a quarter of a minute.
TRAFFIC_SECONDS = 30.0


@dataclass(slots=True)
class ProcessSnapshot:
    """The processes of an attempt at one time.

    Attributes:
        at: monotonic seconds.
        ranks: the processes of each rank; if none has a rank, all of them as rank None.
        others: the rest, such as torchrun.
        size: the number of ranks.
        is_closed: no rank has a connection to another machine or to a program that is not the attempt's.
        outside_bytes: what such connections of any process have moved, by connection.
    """

    at: float
    ranks: dict[int | None, list[ProcessReading]]
    others: list[ProcessReading]
    size: int
    is_closed: bool = False
    outside_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Private memory of all processes."""
        groups = (*self.ranks.values(), self.others)
        return sum(process.private_bytes or 0 for group in groups for process in group)


@dataclass(slots=True)
class AttemptWatch:
    """The detectors of one attempt, and what they need to know of it.

    Attributes:
        progress_at: the last progress.
        lines_at, first_line_at: when the newest and the first line arrived at this agent.
        step_lines, line_ranks: the lines with a step, and the ranks that they name; None for none.
        stuck_since: since when every check found the attempt stuck.
        worked: a check during this silence found it at work.
        together_at: the last check that found several ranks at work.
        was_open: a check during this silence found a connection to a program of another.
        traffic: the newest snapshots' bytes on such connections, with their times.
        output: the state of the attempt's logs at the last look at them.
        is_patient: an earlier attempt was ended for a hang: waiting ranks get all the time that
            history explains.
    """

    record: Attempt
    progress: StepProgress
    progress_at: float
    metrics: MetricHistory = field(default_factory=MetricHistory)
    nonfinite: NonFinite = field(default_factory=NonFinite)
    spikes: tuple[Spike, Spike] = field(default_factory=lambda: (loss_spike(), gradient_spike()))
    straggler: Straggler = field(default_factory=Straggler)
    had_lines: bool = False
    lines_at: float = -math.inf
    first_line_at: float = math.inf
    step_lines: int = 0
    line_ranks: set[int | None] = field(default_factory=set)
    size: int = 1
    last: ProcessSnapshot | None = None
    stuck_since: float | None = None
    worked: bool = False
    together_at: float = -math.inf
    was_open: bool = False
    is_patient: bool = False
    traffic: deque[tuple[float, Mapping[int, int]]] = field(default_factory=deque)
    output: object = None
    memory: deque[MemorySample] = field(default_factory=lambda: deque(maxlen=MEMORY_SAMPLES))
    powers: dict[str, deque[float]] = field(default_factory=dict)

    def begin_metrics(self, roles: MetricRoles, lines: Iterable[WatchedLine] = ()) -> list[Observation]:
        """Watch the history of metrics with other names, which the attempt's stored ``lines`` have already."""
        self.metrics = MetricHistory(roles)
        self.nonfinite = NonFinite()
        self.spikes = (loss_spike(), gradient_spike())
        self.nonfinite.name = self.spikes[0].name = roles.loss or LOSS
        observations: list[Observation | None] = []
        for line in lines:
            if line.attempt == self.record.number:
                self.add_to_history(line)
                observations += self._observe_losses(line)
        return [observation for observation in observations if observation is not None]

    def take(self, lines: Iterable[WatchedLine], clock: float, arrived_at: float | None = None) -> list[Observation]:
        """Take in the attempt's next lines; return what their numbers show.

        Args:
            clock: now (monotonic).
            arrived_at: replaces missing timestamps (UTC unix seconds); None for lines that arrived without an agent.
        """
        own_lines = [line for line in lines if line.attempt == self.record.number]
        if not own_lines:
            return []
        self.had_lines = True
        self.first_line_at = min(self.first_line_at, clock)
        before = self.progress.lines
        silent = clock - self.progress_at
        # Lines that arrived without an agent have only the script's timestamps.
        at_most = LONGEST_GAP_SECONDS
        if arrived_at is not None:
            at_most = silent + LOOK_SECONDS
        if self.progress.add(own_lines, arrived_at, at_most):
            if before and arrived_at is not None:
                # Timestamps of buffered lines hide the silence before their arrival.
                self.progress.pace.add_gap(max(0.0, silent - LOOK_SECONDS), before)
            self.restart_silence(clock)
        if arrived_at is not None:
            self.lines_at = clock
        observations = itertools.chain.from_iterable(map(self._observe_line, own_lines))
        return [observation for observation in observations if observation is not None]

    def _observe_line(self, line: WatchedLine) -> Iterator[Observation | None]:
        self.add_to_history(line)
        if line.event is not None or line.step is None:
            return
        self.step_lines += 1
        self.line_ranks.add(line.rank)
        yield from self._observe_losses(line)
        if line.rank is not None:
            self.size = max(self.size, line.rank + 1)
            yield self.straggler.add(line.rank, line.step, line.values, self.size)

    def _observe_losses(self, line: WatchedLine) -> Iterator[Observation | None]:
        if not line.rank and line.step is not None and line.event is None:
            loss = line.values.get(LOSS)
            norm = line.values.get("grad_norm")
            if loss is not None:
                yield self.nonfinite.add(line.step, loss, is_null=line.has_null_loss)
                yield self.spikes[0].add(line.step, loss)
            if norm is not None:
                yield self.spikes[1].add(line.step, norm)

    def add_to_history(self, line: WatchedLine) -> None:
        """Add a line to the history of the metrics alone."""
        self.metrics.add(line.step, line.values, line.stored_at, event=line.event, rank=line.rank)

    @property
    def lone_rank(self) -> int | None:
        """The rank beyond 0 that all of enough lines name, or None."""
        if len(self.line_ranks) != 1 or self.step_lines < LONE_RANK_LINES:
            return None
        (rank,) = self.line_ranks
        return rank or None

    # --- silence ------------------------------------------------------------------------------

    def restart_silence(self, clock: float) -> None:
        """Measure the silence from now on: after progress, or when none could be seen."""
        self.progress_at = clock
        self.forget_looks()
        self.worked = self.was_open = False
        self.together_at = -math.inf

    def forget_looks(self) -> None:
        """Forget the last snapshot, with which a later one cannot be compared."""
        self.last = None
        self.stuck_since = None
        self.output = None
        self.traffic.clear()

    def note_output(self, output: object, clock: float) -> None:
        """Take in the state of the attempt's logs: where it changes, the attempt has printed, and
        its silence begins anew."""
        if self.output is not None and output != self.output:
            self.restart_silence(clock)
        self.output = output

    def note_power(self, samples: Mapping[str, GpuSample]) -> None:
        """Record the GPUs' power while the run makes progress."""
        for uuid in self.record.gpus:
            if uuid in samples and (watts := samples[uuid].power_watts) is not None:
                self.powers.setdefault(uuid, deque(maxlen=POWER_SAMPLES)).append(watts)

    def assess(
        self, snapshot: ProcessSnapshot, samples: Mapping[str, GpuSample], quiet: ProgressSilence, hang_after: float
    ) -> tuple[Observation | None, bool]:
        """Judge a silence by what the processes did since the last snapshot.

        Args:
            samples: the current ones of the attempt's GPUs.
            hang_after: the policy's, in seconds.

        Returns:
            The verdict, and whether it is certain: a hang is once every check found the attempt stuck for long enough.
        """
        before = self.last
        self.last = snapshot
        if before is None:
            return None, False
        seconds = snapshot.at - before.at
        processes = list(itertools.chain.from_iterable(snapshot.ranks.values()))
        # What was there before the first line is what trains.
        silent_seconds = min(quiet.seconds + STEP_NOTICED_SECONDS, snapshot.at - self.first_line_at)
        ranks: Collection[int | None] = snapshot.ranks
        if snapshot.size > 1:
            ranks = range(snapshot.size)
        doings = {
            rank: doing(
                before.ranks.get(rank, ()),
                snapshot.ranks.get(rank, ()),
                seconds,
                self._gpu_activity(rank, samples),
                silent_seconds,
                is_only=snapshot.size == 1,
            )
            for rank in ranks
        }
        if sum(not what.is_stuck for what in doings.values()) > 1:
            self.together_at = snapshot.at
        self.was_open = self.was_open or not snapshot.is_closed
        activity = RankActivity(
            doings,
            launcher_stopped=any(process.state == "T" for process in snapshot.others),
            meets=self.had_lines or snapshot.size > 1,
            alone_seconds=snapshot.at - self.together_at,
            is_closed=not self.was_open,
            is_patient=self.is_patient,
            exchanges=self._exchanges(snapshot),
            has_program=any(process.is_program for process in younger_than(processes, silent_seconds)),
        )
        verdict = judge(quiet, activity)
        if verdict is None or not is_stuck(verdict):
            self.stuck_since = None
            self.worked = self.worked or verdict is not None
            return verdict, verdict is not None
        if self.stuck_since is None:
            self.stuck_since = snapshot.at
        needed = min(STUCK_SECONDS, hang_after)
        if not quiet.is_overdue:
            needed = verdict.hold_seconds
        elif self.worked:
            needed = min(STUCK_AFTER_WORK_SECONDS, hang_after)
        is_time = quiet.is_overdue or quiet.may_be_evident
        return verdict, is_time and snapshot.at - self.stuck_since >= needed

    def _exchanges(self, snapshot: ProcessSnapshot) -> bool:
        """Return whether connections beyond the attempt have moved data for some time."""
        self.traffic.append((snapshot.at, snapshot.outside_bytes))
        while snapshot.at - self.traffic[0][0] > TRAFFIC_SECONDS:
            self.traffic.popleft()
        begin, before = self.traffic[0]
        moved = sum(count - before.get(inode, 0) for inode, count in snapshot.outside_bytes.items())
        return moved >= BUSY_NETWORK_BYTES_PER_SECOND * max(snapshot.at - begin, LOOK_SECONDS)

    def _gpu_activity(self, rank: int | None, samples: Mapping[str, GpuSample]) -> GpuActivity | None:
        uuids = self.record.gpus
        # A single process may use any of its GPUs: the busiest counts.
        if rank is not None and uuids:
            uuids = (uuids[rank % len(uuids)],)
        readings = [samples[uuid] for uuid in uuids if uuid in samples]
        if not readings:
            return None
        sample = max(readings, key=lambda reading: reading.utilization_percent or 0.0)
        share = None
        watts = sample.power_watts
        powers = self.powers.get(sample.uuid)
        if powers and watts is not None and (usual := statistics.median(powers)) > 0:
            share = watts / usual
        return GpuActivity(sample.utilization_percent, sample.memory_utilization_percent, share)

    def note_memory(self, sample: MemorySample) -> Leak | None:
        """Add a sample; return the leak that all samples show, if any."""
        self.memory.append(sample)
        return find_leak(tuple(self.memory))
