"""What one round of reading brought: per run and attempt, cheap enough to be made with every round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gputui.metrics.batch import Batch, MetricsNote
from gputui.store.metrics.queries import NOT_METRICS, as_float


@dataclass(slots=True)
class AttemptProgress:
    """What is new of one attempt. ``first_step`` and ``last_step`` are those of this round's lines, events apart, None
    without any; ``first_at`` and ``last_at`` the times (unix seconds) that those lines tell. ``values`` are the newest
    of each metric among them, of rank 0 where ranks write lines of their own; NaN and infinities are floats here.
    ``events`` counts the lines of each event."""

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
            self.values |= _floats(batch.newest[leading])


@dataclass(slots=True)
class IngestReport:
    """What one round brought. ``more``: the budget ended before the files did. ``notes`` are on files that were
    truncated, replaced or could not be read, each with the run it concerns."""

    lines: int = 0
    rejected: int = 0
    bytes: int = 0
    more: bool = False
    progress: list[AttemptProgress] = field(default_factory=list)
    notes: list[tuple[str, MetricsNote]] = field(default_factory=list)

    def add(self, run_id: str, batch: Batch) -> None:
        self.lines += len(batch.rows)
        self.rejected += len(batch.rejected)
        self.bytes += batch.bytes_read
        if batch.note is not None:
            self.notes.append((run_id, batch.note))
        if batch.rows or batch.rejected:
            self._of(run_id, batch.attempt).add(batch)

    def _of(self, run_id: str, attempt: int) -> AttemptProgress:
        for known in self.progress:
            if known.run_id == run_id and known.attempt == attempt:
                return known
        self.progress.append(AttemptProgress(run_id, attempt))
        return self.progress[-1]


def _floats(values: dict[str, Any]) -> dict[str, float]:
    found = {name: as_float(value) for name, value in values.items() if name not in NOT_METRICS}
    return {name: value for name, value in found.items() if value is not None}
