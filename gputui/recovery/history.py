"""The history of a run as input of a decision, made from stored rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from gputui.recovery.decide import UNDO, AttemptReach, PastDecision, Resumption, Verdict
from gputui.runs.spec import Scalar
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.commands import RESUME
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState


def past_decisions(
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    transitions: Sequence[TransitionView],
    ledger: Sequence[CheckpointRow] = (),
    *,
    steps_start_again: bool = False,
) -> list[PastDecision]:
    """The decisions of a run since a person last started it, oldest first. ``ledger`` are its checkpoints;
    ``steps_start_again``: its steps are counted within an epoch, and show no progress."""
    since = person_started_at(transitions)
    kinds = {incident.incident_id: incident.kind for incident in incidents}
    series = [attempt for attempt in attempts if attempt.created_at >= since]
    past = []
    for decision in sorted(decisions, key=lambda row: row.decision_id):
        if decision.at < since:
            continue
        verdict: Verdict = "retry" if decision.verdict == "retry" else "stop"
        past.append(
            PastDecision(
                attempt=decision.attempt,
                kind=kinds.get(decision.incident_id, "unknown"),
                rung=decision.rung,
                verdict=verdict,
                progressed=_progressed(series, decision, ledger, steps_start_again=steps_start_again),
                changed=bool(decision.params),
                actions=tuple(_applied(decision)),
                replaced=_replaced(decision),
            )
        )
    return past


def progress_of(
    attempts: Sequence[Attempt],
    number: int,
    ledger: Sequence[CheckpointRow],
    transitions: Sequence[TransitionView],
    lines: StepLines | None = None,
    *,
    ended_at: float,
    steps_start_again: bool = False,
) -> AttemptReach:
    """How far attempt ``number`` got. ``ledger`` are the run's checkpoints; ``ended_at`` in UTC unix seconds. For
    ``steps_start_again`` see `past_decisions`."""
    since = person_started_at(transitions)
    attempt = next((row for row in attempts if row.number == number), None)
    if attempt is None:
        return AttemptReach()
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    steps = [row.last_step for row in attempts if row.number < number and row.created_at >= since]
    return AttemptReach(
        last_step=attempt.last_step,
        best_step_before=max((step for step in steps if step is not None), default=None),
        new_checkpoint=any(row.is_written and row.attempt == number and row.verdict != "invalid" for row in ledger),
        further_checkpoint=steps_start_again and _has_saved_further(attempt, ledger),
        ran_seconds=max(0.0, ended_at - began),
        resumption=resumptions(attempts, lines, ledger).get(number),
    )


def person_started_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last launched, restarted or resumed the run; minus infinity if unknown.

    Only recovery moves a run from ``recovering`` to ``queued``; all other moves to ``queued`` are a person's.
    """
    return max((move.at for move in _queued_by_person(transitions)), default=float("-inf"))


def training_began_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last started the run from scratch; minus infinity if unknown. A resume does not count, nor does a
    start that was stopped in the queue."""
    idle = {move.transition_id for move, after in pairwise(transitions) if after.to_state != RunState.STARTING}
    begun = (
        move.at for move in _queued_by_person(transitions) if move.cause != RESUME and move.transition_id not in idle
    )
    return max(begun, default=float("-inf"))


def _queued_by_person(transitions: Sequence[TransitionView]) -> list[TransitionView]:
    return [move for move in transitions if move.to_state == RunState.QUEUED and move.from_state != RunState.RECOVERING]


def _progressed(
    attempts: Sequence[Attempt], decision: DecisionView, ledger: Sequence[CheckpointRow], *, steps_start_again: bool
) -> bool:
    """Whether the attempt before a decision got further than those before it."""
    attempt = next((row for row in attempts if row.number == decision.attempt), None)
    if attempt is None:
        return False
    if attempt.last_step is not None:
        is_furthest = all(
            row.last_step is None or row.last_step < attempt.last_step
            for row in attempts
            if row.number < attempt.number
        )
        return is_furthest or (steps_start_again and _has_saved_further(attempt, ledger))
    # Without steps, a new checkpoint shows progress: the one from which the next attempt began.
    if decision.resume_from is None:
        return False
    row = next((row for row in ledger if row.path == decision.resume_from), None)
    return decision.resume_from != attempt.resumed_from if row is None else row.attempt >= attempt.number


def _has_saved_further(attempt: Attempt, ledger: Sequence[CheckpointRow]) -> bool:
    """Whether an attempt that began from the newest checkpoint has written one where none was."""
    if attempt.resumed_from is None or any(row.left_by == attempt.number for row in ledger):
        return False
    saved = [row for row in ledger if row.is_written and row.attempt == attempt.number]
    return any(
        row.verdict not in ("invalid", "cut", "left", "struck")
        and not any(other.path == row.path and other.seen < row.seen for other in ledger)
        for row in saved
    )


def _applied(decision: DecisionView) -> list[str]:
    return [
        str(action["action"])
        for action in decision.actions
        if isinstance(action, Mapping) and action.get("applied") is True and "action" in action
    ]


def _replaced(decision: DecisionView) -> dict[str, Scalar]:
    """Values of parameters before the ladder's actions changed them."""
    replaced: dict[str, Scalar] = {}
    for action in decision.actions:
        if isinstance(action, Mapping) and action.get("applied") is True and action.get("action") != UNDO:
            for change in action.get("changes") or ():
                replaced.setdefault(str(change["parameter"]), change["from"])
    return replaced


class StepLines(Protocol):
    """The order of a run's stored steps, by attempt; see `gputui.store.metrics.step_times`."""

    def repeats(self, attempt: int, step: int) -> bool: ...

    def widest_gap(self, attempt: int) -> int | None: ...


# Tolerances: the first line may not be the first step, and a checkpoint's step depends on when it was scanned.
_NEAR_BEGINNING, _NEAR_CHECKPOINT = 0.25, 0.9
# How many attempts before one show how far apart its lines may be.
_MOST_ATTEMPTS = 3


def resumptions(
    attempts: Sequence[Attempt], lines: StepLines | None = None, ledger: Sequence[CheckpointRow] = ()
) -> Mapping[int, Resumption]:
    """How each attempt with a checkpoint really continued, by its number; unknown ones are left out. ``ledger`` are the
    run's checkpoints.

    If an attempt repeats a step after later ones, steps restart with every epoch, and the first step says nothing.
    """

    by_attempt: dict[int, Resumption] = {}
    firsts: list[int] = []
    for attempt in sorted(attempts, key=lambda row: row.number):
        if attempt.first_step is None:
            continue
        if attempt.resumed_from is None or attempt.resumed_step is None:
            firsts.append(attempt.first_step)
            continue
        origin = min(firsts, default=0)
        done, resumed = attempt.first_step - origin, attempt.resumed_step - origin
        if _loaded_later(attempt, attempt.resumed_step, attempts, lines, ledger):
            if not _start_again(attempts, lines):
                by_attempt[attempt.number] = "later"
        elif done >= resumed * _NEAR_CHECKPOINT:
            by_attempt[attempt.number] = "resumed"
        elif not _start_again(attempts, lines):
            by_attempt[attempt.number] = "beginning" if done <= resumed * _NEAR_BEGINNING else "earlier"
    return by_attempt


def _start_again(attempts: Sequence[Attempt], lines: StepLines | None) -> bool:
    """Whether an attempt's steps start again at its first, as when they are counted within an epoch."""
    return lines is not None and any(
        row.first_step is not None and lines.repeats(row.number, row.first_step) for row in attempts
    )


def _loaded_later(
    attempt: Attempt,
    resumed_step: int,
    attempts: Sequence[Attempt],
    lines: StepLines | None,
    ledger: Sequence[CheckpointRow],
) -> bool:
    """Whether the attempt loaded a later checkpoint than the one that it was given, as scripts do that look for the
    newest themselves: there is one, and the first step is further away than lines ever are from each other."""
    first_step = attempt.first_step
    if first_step is None or first_step <= resumed_step + 1:
        return False
    steps = [row.step for row in ledger if row.attempt < attempt.number and row.step is not None]
    if lines is None or not any(resumed_step < step <= first_step for step in steps):
        return False
    near = range(attempt.number - _MOST_ATTEMPTS, attempt.number + 1)
    gaps = (lines.widest_gap(row.number) for row in attempts if row.number in near)
    return first_step > resumed_step + max((gap for gap in gaps if gap is not None), default=first_step)
