"""From where each attempt of a run really continued."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.losses import finite_losses
from gputui.store.metrics.reached_steps import widest_gap
from gputui.store.metrics.step_lines import StepLines

Resumption = Literal["resumed", "earlier", "later", "recounted", "beginning", "uncertain", "unaided"]
"""From the checkpoint that it was given, an earlier step, or a later one that it found itself. An attempt
that counts its steps from the first again loaded the checkpoint (``recounted``), did not
(``beginning``), or nothing shows which (``uncertain``). One that was given none, and whose steps go on
where others ended, loaded what the script had saved (``unaided``)."""

# The first line may not be the first step, and a checkpoint's step depends on when it was scanned.
_NEAR_BEGINNING = 0.25
_NEAR_CHECKPOINT = 0.9
# How many attempts before one show how far apart its lines may be.
_MOST_ATTEMPTS = 3
# So many losses are compared, by their median. Where the first ones of an attempt lie on the way from those
# of the beginning (0) to those at the checkpoint (1): at most and at least here they tell.
_LOSSES = 5
_LIKE_BEGINNING = 0.25
_LIKE_CHECKPOINT = 0.75
# The way must be so many times longer than losses at the checkpoint usually differ.
_CLEAR = 3.0


def resumptions(
    attempts: Sequence[Attempt], lines: StepLines | None = None, ledger: Sequence[CheckpointRow] = ()
) -> Mapping[int, Resumption]:
    """The real continuation of each attempt that did not begin the training, by its number.

    Unknown ones are left out. Where an attempt repeats a step after later ones, steps restart with every epoch, and
    the first one says nothing.

    Args:
        lines: the run's metrics.
        ledger: its checkpoints.
    """
    by_attempt: dict[int, Resumption] = {}
    firsts: list[int] = []
    counts_on = False
    for attempt in sorted(attempts, key=lambda row: row.number):
        first = attempt.first_step
        resumed_step = attempt.resumed_step
        if first is None:
            continue
        if attempt.resumed_from is None and firsts and _is_beyond(min(firsts), attempt, attempts, lines):
            by_attempt[attempt.number] = "unaided"
            continue
        if attempt.resumed_from is None or resumed_step is None:
            firsts.append(first)
            continue
        origin = min(firsts, default=0)
        done = first - origin
        resumed = resumed_step - origin
        if _loaded_later(attempt, first, resumed_step, attempts=attempts, lines=lines, ledger=ledger):
            resumption: Resumption = "later"
        elif done >= resumed * _NEAR_CHECKPOINT:
            resumption = "resumed"
        else:
            resumption = "earlier"
            if done <= resumed * _NEAR_BEGINNING:
                resumption = _by_losses(attempt, attempts, lines)
        if resumption == "resumed" or not _steps_start_again(attempts, lines):
            by_attempt[attempt.number] = resumption
            counts_on = counts_on or (done > 0 and resumption in ("resumed", "earlier", "later"))
    if counts_on:
        # The script counts on where it loads a checkpoint.
        for number, resumption in by_attempt.items():
            if resumption == "uncertain":
                by_attempt[number] = "beginning"
    return by_attempt


def _by_losses(attempt: Attempt, attempts: Sequence[Attempt], lines: StepLines | None) -> Resumption:
    """Tell by its first losses what an attempt did that counts its steps from the first again."""
    step = attempt.resumed_step
    before = [row for row in attempts if row.number < attempt.number and row.first_step is not None]
    anew = [row.number for row in before if row.resumed_from is None]
    reached = [row.number for row in before if (row.last_step or 0) + 1 >= (step or 0)]
    if lines is None or step is None or not anew or not reached:
        return "uncertain"
    begin = finite_losses(lines, anew[-1], 2 * _LOSSES)
    new = finite_losses(lines, attempt.number, _LOSSES)
    loss_count = min(_LOSSES, len(begin) // 2, len(new))
    saved = finite_losses(lines, reached[-1], loss_count, up_to_step=step)
    if loss_count == 0 or not saved:
        return "uncertain"
    origin, end, now = (statistics.median(losses) for losses in (begin[:loss_count], saved, new[:loss_count]))
    usual = statistics.median(abs(loss - end) for loss in saved)
    if abs(end - origin) <= _CLEAR * usual:
        return "uncertain"
    progress = (now - origin) / (end - origin)
    if progress >= _LIKE_CHECKPOINT:
        return "recounted"
    if abs(progress) <= _LIKE_BEGINNING:
        return "beginning"
    return "uncertain"


def _steps_start_again(attempts: Sequence[Attempt], lines: StepLines | None) -> bool:
    """Return whether an attempt's steps start again at its first, as when counted within an
    epoch."""
    return lines is not None and any(
        row.first_step is not None and lines.repeats(row.number, row.first_step) for row in attempts
    )


def _loaded_later(
    attempt: Attempt,
    first_step: int,
    resumed_step: int,
    attempts: Sequence[Attempt],
    lines: StepLines | None,
    ledger: Sequence[CheckpointRow],
) -> bool:
    """Return whether the attempt loaded a later checkpoint than it was given, as scripts do that
    look for the newest: there is one, and its first step is beyond the one that it was given."""
    steps = [row.step for row in ledger if row.attempt < attempt.number and row.step is not None]
    is_saved = any(resumed_step < step <= first_step for step in steps)
    return is_saved and _is_beyond(resumed_step, attempt, attempts, lines)


def _is_beyond(step: int, attempt: Attempt, attempts: Sequence[Attempt], lines: StepLines | None) -> bool:
    """Return whether an attempt's first step is further after ``step`` than its lines, or those before it, are ever
    from each other. False if there is but one line."""
    first = attempt.first_step
    if lines is None or first is None or first <= step + 1:
        return False
    own_gap = widest_gap(lines, attempt.number)
    if own_gap is None:
        return False
    near = range(attempt.number - _MOST_ATTEMPTS, attempt.number)
    gaps = (widest_gap(lines, row.number) for row in attempts if row.number in near)
    return first > step + max(own_gap, *(gap for gap in gaps if gap is not None), 0)
