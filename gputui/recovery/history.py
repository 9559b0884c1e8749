"""From stored rows to what a decision needs to know of the attempts before it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from gputui.recovery.decide import UNDO, AttemptReach, PastDecision, Verdict
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
) -> list[PastDecision]:
    """The decisions of a run since a person last started it, the oldest first. ``ledger`` are its checkpoints."""
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
                progressed=_progressed(series, decision, ledger),
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
    *,
    ended_at: float,
) -> AttemptReach:
    """How far attempt ``number`` got. ``ledger`` are the run's checkpoints; ``ended_at`` in UTC unix seconds."""
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
        ran_seconds=max(0.0, ended_at - began),
    )


def person_started_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last launched, restarted or resumed the run; minus infinity where that is not known.

    Only recovery takes a run from ``recovering`` to ``queued``; every other way there is a person's.
    """
    return max((move.at for move in _queued_by_person(transitions)), default=float("-inf"))


def training_began_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last began the run from the start; minus infinity where that is not known. A resume continues, and
    a run that was stopped while it was queued did not begin."""
    idle = {move.transition_id for move, after in pairwise(transitions) if after.to_state != RunState.STARTING}
    begun = (
        move.at for move in _queued_by_person(transitions) if move.cause != RESUME and move.transition_id not in idle
    )
    return max(begun, default=float("-inf"))


def _queued_by_person(transitions: Sequence[TransitionView]) -> list[TransitionView]:
    return [move for move in transitions if move.to_state == RunState.QUEUED and move.from_state != RunState.RECOVERING]


def _progressed(attempts: Sequence[Attempt], decision: DecisionView, ledger: Sequence[CheckpointRow]) -> bool:
    """Whether the attempt that a decision followed got further than those before it."""
    attempt = next((row for row in attempts if row.number == decision.attempt), None)
    if attempt is None:
        return False
    if attempt.last_step is not None:
        return all(
            row.last_step is None or row.last_step < attempt.last_step
            for row in attempts
            if row.number < attempt.number
        )
    # Without steps, a checkpoint of its own shows that it worked: the one with which the next attempt began.
    if decision.resume_from is None:
        return False
    row = next((row for row in ledger if row.path == decision.resume_from), None)
    return decision.resume_from != attempt.resumed_from if row is None else row.attempt >= attempt.number


def _applied(decision: DecisionView) -> list[str]:
    return [
        str(action["action"])
        for action in decision.actions
        if isinstance(action, Mapping) and action.get("applied") is True and "action" in action
    ]


def _replaced(decision: DecisionView) -> dict[str, Scalar]:
    """Parameter → its value before the ladder's actions changed it."""
    found: dict[str, Scalar] = {}
    for action in decision.actions:
        if isinstance(action, Mapping) and action.get("applied") is True and action.get("action") != UNDO:
            for change in action.get("changes") or ():
                found.setdefault(str(change["parameter"]), change["from"])
    return found


Resumption = Literal["resumed", "earlier", "beginning"]
"""It went on from the checkpoint, from an earlier step than the checkpoint's, or began with the first step."""

# First steps differ with the moment of the first line, and a checkpoint's step with the moment when it was seen.
_NEAR_BEGINNING, _NEAR_CHECKPOINT = 0.25, 0.9


def resumptions(
    attempts: Sequence[Attempt], repeats: Callable[[int, int], bool] = lambda attempt, step: False
) -> Mapping[int, Resumption]:
    """What each attempt did that was given a checkpoint, by its number; those that cannot be known are left out.

    ``repeats`` says whether an attempt wrote a step again after later ones: then steps restart with every pass over
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
