"""From where each attempt of a run really continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_times import StepTimes

Resumption = Literal["resumed", "earlier", "beginning", "later"]
"""From the checkpoint that it was given, an earlier step, the first step, or a later one that it found itself."""

# The first line may not be the first step, and a checkpoint's step depends on when it was scanned.
_NEAR_BEGINNING, _NEAR_CHECKPOINT = 0.25, 0.9
# How many attempts before one show how far apart its lines may be.
_MOST_ATTEMPTS = 3


def resumptions(
    attempts: Sequence[Attempt], lines: StepTimes | None = None, ledger: Sequence[CheckpointRow] = ()
) -> Mapping[int, Resumption]:
    """The real continuation of each attempt with a checkpoint, by its number; unknown ones are left
    out. Where an attempt repeats a step after later ones, steps restart with every epoch, and the
    first one says nothing."""
    by_attempt: dict[int, Resumption] = {}
    firsts: list[int] = []
    for attempt in sorted(attempts, key=lambda row: row.number):
        first, given = attempt.first_step, attempt.resumed_step
        if first is None:
            continue
        if attempt.resumed_from is None or given is None:
            firsts.append(first)
            continue
        origin = min(firsts, default=0)
        done, resumed = first - origin, given - origin
        if _loaded_later(attempt.number, first, given, attempts, lines, ledger):
            found: Resumption = "later"
        elif done >= resumed * _NEAR_CHECKPOINT:
            found = "resumed"
        else:
            found = "beginning" if done <= resumed * _NEAR_BEGINNING else "earlier"
        if found == "resumed" or not _start_again(attempts, lines):
            by_attempt[attempt.number] = found
    return by_attempt


def _start_again(attempts: Sequence[Attempt], lines: StepTimes | None) -> bool:
    """Return whether an attempt's steps start again at its first, as when counted within an
    epoch."""
    return lines is not None and any(
        row.first_step is not None and lines.repeats(row.number, row.first_step) for row in attempts
    )


def _loaded_later(
    number: int,
    first_step: int,
    resumed_step: int,
    attempts: Sequence[Attempt],
    lines: StepTimes | None,
    ledger: Sequence[CheckpointRow],
) -> bool:
    """Return whether the attempt loaded a later checkpoint than it was given, as scripts do that
    look for the newest: there is one, and the first step is further away than lines ever are from
    each other."""
    if lines is None or first_step <= resumed_step + 1:
        return False
    steps = [row.step for row in ledger if row.attempt < number and row.step is not None]
    if not any(resumed_step < step <= first_step for step in steps):
        return False
    near = range(number - _MOST_ATTEMPTS, number + 1)
    gaps = (lines.widest_gap(row.number) for row in attempts if row.number in near)
    widest = max((gap for gap in gaps if gap is not None), default=first_step)
    return first_step > resumed_step + widest
