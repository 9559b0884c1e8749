"""The result of one round of reading, per run and attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from gputui.metrics.batch import Batch, MetricsNote
from gputui.store.metrics.queries import NOT_METRICS, as_float


@dataclass(slots=True)
class AttemptProgress:
    """What is new of one attempt. The steps are those of new lines without events, None if there are none; ``first_at``
    and ``last_at`` are their times (unix seconds). ``values`` are the newest value of each metric, of rank 0 if every
    rank writes lines; NaN and infinities are floats. ``events`` counts the lines of each event."""

    run_id: str
    attempt: int
    lines: int = 0
    rejected: int = 0
    first_step: int | None = None
    first_at: float | None = None
    last_step: int | None = None
    last_at: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.lines += len(batch.rows)
        self.rejected += len(batch.rejected)
        steps = batch.steps
        if steps.last is not None:
            if self.last_step is None:
                self.first_step, self.first_at = steps.first, steps.first_at
            if self.last_step is None or steps.last >= self.last_step:
                self.last_step, self.last_at = steps.last, steps.last_at
        for name, times in batch.events.items():
            self.events[name] = self.events.get(name, 0) + times
        if batch.newest:
            leading = min(batch.newest, key=lambda rank: -1 if rank is None else rank)
            for name, value in batch.newest[leading].items():
                if name not in NOT_METRICS and (number := as_float(value)) is not None:
                    self.values[name] = number


@dataclass(slots=True)
class IngestReport:
    """The result of one round. ``more``: the budget ended before the files. ``awaits``: a file is being looked at in
    another thread. ``notes`` are about files that were truncated, replaced or unreadable, with their runs."""

    lines: int = 0
    rejected: int = 0
    bytes: int = 0
    more: bool = False
    awaits: bool = False
    progress: list[AttemptProgress] = field(default_factory=list)
    notes: list[tuple[str, MetricsNote]] = field(default_factory=list)

    def add(self, run_id: str, batch: Batch) -> None:
        self.lines += len(batch.rows)
        self.rejected += len(batch.rejected)
        self.bytes += batch.bytes_read
        if batch.note is not None:
            self.notes.append((run_id, batch.note))
        if batch.rows or batch.rejected:
            self._progress_of(run_id, batch.attempt).add(batch)

    def _progress_of(self, run_id: str, attempt: int) -> AttemptProgress:
        for progress in self.progress:
            if progress.run_id == run_id and progress.attempt == attempt:
                return progress
        self.progress.append(AttemptProgress(run_id, attempt))
        return self.progress[-1]
