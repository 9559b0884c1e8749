"""Whether an attempt went on from the checkpoint that it was given: what its first step shows, not what was asked for.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from gputui.store.runs import Attempt

Resumption = Literal["resumed", "earlier", "beginning"]
"""It went on from the checkpoint, from an earlier step than the checkpoint's, or began with the first step."""

# First steps differ with the moment of the first line, and a checkpoint's step with the moment when it was seen.
_NEAR_BEGINNING, _NEAR_CHECKPOINT = 0.25, 0.9


def resumptions(
    attempts: Sequence[Attempt], repeats: Callable[[int, int], bool] = lambda attempt, step: False
) -> Mapping[int, Resumption]:
    """What each attempt did that was given a checkpoint, by its number; those that cannot be known are left out.

    ``repeats`` says whether an attempt wrote a step again after later ones: then steps begin anew with every pass over
    the data, and the first one shows nothing.
    """
    found: dict[int, Resumption] = {}
    firsts: list[int] = []
    for attempt in sorted(attempts, key=lambda row: row.number):
        if attempt.first_step is None:
            continue
        if attempt.resumed_from is None or attempt.resumed_step is None:
            firsts.append(attempt.first_step)
            continue
        origin = min(firsts, default=0)
        done, given = attempt.first_step - origin, attempt.resumed_step - origin
        if done >= given * _NEAR_CHECKPOINT:
            found[attempt.number] = "resumed"
        elif not any(repeats(row.number, row.first_step) for row in attempts if row.first_step is not None):
            found[attempt.number] = "beginning" if done <= given * _NEAR_BEGINNING else "earlier"
    return found
