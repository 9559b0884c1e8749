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

# Parts of the way to the checkpoint's step. Below the first an attempt is near the beginning, as its first
# line may not be its first step; above the second at the checkpoint, whose step depends on when it was scanned.
_NEAR_BEGINNING = 0.25
_NEAR_CHECKPOINT = 0.9
# How many attempts before one show how far apart its lines may be.
_MOST_ATTEMPTS = 3
# So many losses are compared, by their median.
_LOSSES = 5
# Where the first losses of an attempt lie on the way from those of the beginning (0) to those at the checkpoint
# (1): at most and at least here they tell.
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
    beginnings: list[int] = []  # first steps of the attempts that were given no checkpoint
    counts_on = False
    for attempt in sorted(attempts, key=lambda row: row.number):
        first_step = attempt.first_step
        resumed_step = attempt.resumed_step
        if first_step is None:
            continue
        if attempt.resumed_from is None or resumed_step is None:
            is_given_none = attempt.resumed_from is None
            if is_given_none and beginnings and _is_beyond(min(beginnings), attempt, attempts, lines):
                by_attempt[attempt.number] = "unaided"
            else:
                beginnings.append(first_step)
            continue
        origin = min(beginnings, default=0)
        if _loaded_later(attempt, first_step, resumed_step, attempts=attempts, lines=lines, ledger=ledger):
            resumption: Resumption = "later"
        else:
            resumption = _by_steps(first_step - origin, resumed_step - origin)
        if resumption == "uncertain":
            resumption = _by_losses(attempt, attempts, lines)
        if resumption == "resumed" or not _steps_start_again(attempts, lines):
            by_attempt[attempt.number] = resumption
            has_counted_on = first_step > origin and resumption in ("resumed", "earlier", "later")
            counts_on = counts_on or has_counted_on
    if counts_on:
        # The script counts on where it loads a checkpoint; an attempt near the beginning has loaded none.
        for number, resumption in by_attempt.items():
            if resumption == "uncertain":
                by_attempt[number] = "beginning"
    return by_attempt


def _by_steps(done: int, resumed: int) -> Resumption:
    """Tell by its first step what an attempt did that was given a checkpoint.

    Both steps count from the beginning of the training. One near it is "uncertain": the attempt began there, or
    counts from there again.
    """
    if done >= resumed * _NEAR_CHECKPOINT:
        return "resumed"
    if done > resumed * _NEAR_BEGINNING:
        return "earlier"
    return "uncertain"


def _by_losses(attempt: Attempt, attempts: Sequence[Attempt], lines: StepLines | None) -> Resumption:
    """Tell by its first losses what an attempt did whose first step is near the beginning."""
    if lines is None or attempt.resumed_step is None:
        return "uncertain"
    progress = _loss_progress(attempt, attempt.resumed_step, attempts, lines)
    if progress is None:
        return "uncertain"
    if progress >= _LIKE_CHECKPOINT:
        return "recounted"
    if abs(progress) <= _LIKE_BEGINNING:
        return "beginning"
    return "uncertain"


def _loss_progress(attempt: Attempt, resumed_step: int, attempts: Sequence[Attempt], lines: StepLines) -> float | None:
    """Where an attempt's first losses lie on the way from those of the beginning (0) to those at the checkpoint (1).

    None if losses are missing, or differ too little between the two.
    """
    before = [row for row in attempts if row.number < attempt.number and row.first_step is not None]
    from_beginning = [row.number for row in before if row.resumed_from is None]
    to_checkpoint = [row.number for row in before if (row.last_step or 0) + 1 >= resumed_step]
    if not from_beginning or not to_checkpoint:
        return None
    # Of a short attempt, at most the first half of its losses stands for the beginning.
    at_beginning = finite_losses(lines, from_beginning[-1], 2 * _LOSSES)
    at_start = finite_losses(lines, attempt.number, _LOSSES)
    count = min(_LOSSES, len(at_beginning) // 2, len(at_start))
    at_checkpoint = finite_losses(lines, to_checkpoint[-1], count, up_to_step=resumed_step)
    if count == 0 or not at_checkpoint:
        return None
    begin = statistics.median(at_beginning[:count])
    end = statistics.median(at_checkpoint)
    usual_difference = statistics.median(abs(loss - end) for loss in at_checkpoint)
    if abs(end - begin) <= _CLEAR * usual_difference:
        return None
    return (statistics.median(at_start[:count]) - begin) / (end - begin)


def _steps_start_again(attempts: Sequence[Attempt], lines: StepLines | None) -> bool:
    """Return whether an attempt's steps start again at its first, as when counted within an
    epoch."""
    if lines is None:
        return False
    return any(row.first_step is not None and lines.repeats(row.number, row.first_step) for row in attempts)


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
