"""The watch over one live attempt: its lines, processes and GPUs go in, observations come out.

Pure; times are monotonic seconds unless stated. A silence is the time since the last progress.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gputui.recovery.watch.activity import LOOK_SECONDS, ActivityWatch, ProcessSnapshot
from gputui.recovery.watch.leaks import Leak, MemorySample, find_leak
from gputui.recovery.watch.metric_history import MetricHistory
from gputui.recovery.watch.numbers import NonFinite, Spike, Straggler, gradient_spike, loss_spike
from gputui.recovery.watch.rules import Observation
from gputui.recovery.watch.silence import LONGEST_GAP_SECONDS, ProgressSilence, StepProgress
from gputui.store.attempts import Attempt
from gputui.store.metrics.roles import LOSS, MetricRoles
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample

# A leak shows in a quarter of an hour of samples taken every 30 s; this is enough for a night.
MEMORY_SAMPLES = 1500
# Ranks that write lines have written some by then.
LONE_RANK_LINES = 20


@dataclass(slots=True)
class AttemptWatch:
    """The detectors of one attempt, and what they need to know of it.

    Attributes:
        progress_at: the last progress (monotonic).
        nonfinite: detects numbers that are not finite.
        spikes: detect jumps of the loss and of the gradient norm.
        straggler: detects a rank that is slower than the others.
        had_lines: this attempt, or one before it, has written metrics.
        lines_at: when the newest line arrived at this agent (monotonic).
        first_line_at: when the first line arrived at this agent (monotonic).
        step_lines: how many lines had a step.
        line_ranks: the ranks that lines with a step name; None stands for lines that name none.
        size: the number of ranks, as far as its lines tell.
        activity: what it does while it makes no progress.
        memory: the newest samples.
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
    activity: ActivityWatch = field(init=False)
    memory: deque[MemorySample] = field(default_factory=lambda: deque(maxlen=MEMORY_SAMPLES))

    def __post_init__(self) -> None:
        self.activity = ActivityWatch(self.record.gpus)

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
        self.activity.restart()

    def note_output(self, output: object, clock: float) -> None:
        """Take in the state of the attempt's logs: where it changes, the attempt has printed, and
        its silence begins anew."""
        before = self.activity.output
        if before is not None and output != before:
            self.restart_silence(clock)
        self.activity.output = output

    def assess(
        self, snapshot: ProcessSnapshot, samples: Mapping[str, GpuSample], quiet: ProgressSilence, hang_after: float
    ) -> tuple[Observation | None, bool]:
        """Judge a silence, as `ActivityWatch.assess`."""
        return self.activity.assess(
            snapshot,
            samples,
            quiet,
            hang_after,
            first_line_at=self.first_line_at,
            had_lines=self.had_lines,
        )

    def note_memory(self, sample: MemorySample) -> Leak | None:
        """Add a sample; return the leak that all samples show, if any."""
        self.memory.append(sample)
        return find_leak(tuple(self.memory))
