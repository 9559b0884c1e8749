"""The attempts of a run as its ledger of checkpoints sees them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputui.runs.stored_spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.runs import Run

# A run without metrics that lived this long has finished its setup.
WORKED_SECONDS = 60.0


class AttemptSpan(Struct, frozen=True):
    """An attempt as the ledger sees it, with times in UTC unix seconds: the end is None while it
    lives, ``resumed_from`` if it began from the start. ``has_worked``: it made a step.
    ``ended_well``: its command ended with code 0. Attempts with as many GPUs have as many ranks."""

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool
    gpu_count: int = 0
    ended_well: bool = False


Spans = Sequence[AttemptSpan]


def attempt_spans(attempts: Sequence[Attempt], *, names_metrics: bool, now: float) -> tuple[AttemptSpan, ...]:
    """The attempts of a run, oldest first. ``names_metrics``: its profile says where its metrics are. ``now`` is UTC
    unix seconds."""
    spans = []
    has_metrics = names_metrics or any(row.last_step is not None for row in attempts)
    for row in sorted(attempts, key=lambda row: row.number):
        ended_at = now if row.ended_at is None else row.ended_at
        is_long = not has_metrics and ended_at - row.began_at >= WORKED_SECONDS
        has_worked = row.last_step is not None or is_long
        ends = (row.created_at, row.ended_at)
        base = row.resumed_from
        last_step = row.last_step
        spans.append(AttemptSpan(row.number, *ends, base, last_step, has_worked, len(row.gpus), row.exit_code == 0))
    return tuple(spans)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[AttemptSpan, ...]:
    """The same for a view, whose run has the specification as text."""
    spec = known_spec(run)
    return attempt_spans(attempts, names_metrics=spec is None or spec.names_metrics, now=now)
