"""The history of a run as input of a decision, made from stored rows. Pure but for `StepTimes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from gputui.recovery.plans import UNDO, AttemptReach, PastDecision, Resumption
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.commands import RESUME
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState

# Tolerances: the first line may not be the first step, and a checkpoint's step depends on when it
# was scanned.
_NEAR_BEGINNING, _NEAR_CHECKPOINT = 0.25, 0.9
# How many attempts before one show how far apart its lines may be.
_MOST_ATTEMPTS = 3


def past_decisions(
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    transitions: Sequence[TransitionView],
    ledger: Sequence[CheckpointRow] = (),
    *,
    steps_start_again: bool = False,
) -> list[PastDecision]:
    """The decisions of a run since a person last started it, oldest first. ``ledger`` are its
    checkpoints; ``steps_start_again``: its steps are counted within an epoch, and show no
    progress."""
    since = person_started_at(transitions)
    kinds = {incident.incident_id: incident.kind for incident in incidents}
    series = [attempt for attempt in attempts if attempt.created_at >= since]
    progressed = {row.number: _reach(row, series, ledger, steps_start_again).made for row in series}
    past = []
    for decision in sorted(decisions, key=lambda row: row.decision_id):
        if decision.at < since:
            continue
        applied = list(_applied(decision))
        changes = (
            change
            for action in reversed(applied)
            if action["action"] != UNDO
            for change in reversed(action.get("changes") or ())
        )
        past.append(
            PastDecision(
                attempt=decision.attempt,
                kind=kinds.get(decision.incident_id, "unknown"),
                rung=decision.rung,
                verdict="retry" if decision.verdict == "retry" else "stop",
                progressed=progressed.get(decision.attempt, False),
                changed=bool(decision.params),
                actions=tuple(str(action["action"]) for action in applied),
                replaced={str(change["parameter"]): change["from"] for change in changes},
            )
        )
    return past


def progress_of(
    attempts: Sequence[Attempt],
    number: int,
    ledger: Sequence[CheckpointRow],
    transitions: Sequence[TransitionView],
    lines: StepTimes | None = None,
    *,
    ended_at: float,
    steps_start_again: bool = False,
) -> AttemptReach:
    """How far attempt ``number`` got. ``ledger`` are the run's checkpoints; ``ended_at`` in UTC
    unix seconds. For ``steps_start_again`` see `past_decisions`."""
    since = person_started_at(transitions)
    attempt = next((row for row in attempts if row.number == number), None)
    if attempt is None:
        return AttemptReach()
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    series = [row for row in attempts if row.created_at >= since]
    return replace(
        _reach(attempt, series, ledger, steps_start_again),
        ran_seconds=max(0.0, ended_at - began),
        resumption=resumptions(attempts, lines, ledger).get(number),
    )


def _reach(
    attempt: Attempt, series: Sequence[Attempt], ledger: Sequence[CheckpointRow], steps_start_again: bool
) -> AttemptReach:
    """How far an attempt got, compared with those of the ``series`` before it."""
    before = (row.last_step for row in series if row.number < attempt.number and row.last_step is not None)
    own = (row for row in ledger if row.is_written and row.attempt == attempt.number)
    return AttemptReach(
        last_step=attempt.last_step,
        best_step_before=max(before, default=None),
        new_checkpoint=any(row.verdict != "invalid" for row in own),
        further_checkpoint=steps_start_again and _has_saved_further(attempt, ledger),
    )


def without_unsound_steps(attempts: Sequence[Attempt], lines: StepTimes) -> list[Attempt]:
    """The attempts, each up to the step before its loss stayed not finite: what follows is no
    progress. Raises sqlite3.Error."""
    cut = []
    for attempt in attempts:
        unsound = lines.unsound_since(attempt.number)
        cut.append(attempt if unsound is None else replace(attempt, last_step=unsound[0] - 1))
    return cut


def person_started_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last launched, restarted or resumed the run; minus infinity if unknown."""
    return max((move.at for move in queued_by_person(transitions)), default=float("-inf"))


def training_began_at(transitions: Sequence[TransitionView]) -> float:
    """When a person last started the run from scratch and it began; minus infinity if unknown."""
    idle = {move.transition_id for move, after in pairwise(transitions) if after.to_state != RunState.STARTING}
    begun = (
        move.at for move in queued_by_person(transitions) if move.cause != RESUME and move.transition_id not in idle
    )
    return max(begun, default=float("-inf"))


def queued_by_person(transitions: Sequence[TransitionView]) -> list[TransitionView]:
    """The moves to ``queued`` by a person: only recovery moves a run there from ``recovering``."""
    return [move for move in transitions if move.to_state == RunState.QUEUED and move.from_state != RunState.RECOVERING]


def _has_saved_further(attempt: Attempt, ledger: Sequence[CheckpointRow]) -> bool:
    """Whether an attempt that began from the newest checkpoint has written one where none was."""
    if attempt.resumed_from is None or any(row.left_by == attempt.number for row in ledger):
        return False
    return any(
        row.is_written
        and row.attempt == attempt.number
        and row.verdict not in ("invalid", "cut", "left", "struck")
        and not any(other.path == row.path and other.seen < row.seen for other in ledger)
        for row in ledger
    )


def _applied(decision: DecisionView) -> Iterator[Mapping[str, Any]]:
    for action in decision.actions:
        if isinstance(action, Mapping) and action.get("applied") is True and "action" in action:
            yield action


# --- resumptions ------------------------------------------------------------------------------


def resumptions(
    attempts: Sequence[Attempt], lines: StepTimes | None = None, ledger: Sequence[CheckpointRow] = ()
) -> Mapping[int, Resumption]:
    """How each attempt with a checkpoint really continued, by its number; unknown ones are left
    out. ``ledger`` are the run's checkpoints.

    If an attempt repeats a step after later ones, steps restart with every epoch, and the first
    step says nothing.
    """
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
    """Whether an attempt's steps start again at its first, as when counted within an epoch."""
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
    """Whether the attempt loaded a later checkpoint than the one that it was given, as scripts do
    that look for the newest themselves: there is one, and the first step is further away than lines
    ever are from each other."""
    if lines is None or first_step <= resumed_step + 1:
        return False
    steps = [row.step for row in ledger if row.attempt < number and row.step is not None]
    if not any(resumed_step < step <= first_step for step in steps):
        return False
    near = range(number - _MOST_ATTEMPTS, number + 1)
    gaps = (lines.widest_gap(row.number) for row in attempts if row.number in near)
    widest = max((gap for gap in gaps if gap is not None), default=first_step)
    return first_step > resumed_step + widest
