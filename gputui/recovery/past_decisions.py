"""The past of a run as input of a decision. Pure but for the metrics that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gputui.recovery.classify import detail_of
from gputui.recovery.plans import UNDO, AttemptReach, PastDecision, Verdict
from gputui.recovery.resumptions import Resumption
from gputui.recovery.run_history import RunHistory, person_started_at
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.losses import unsound_since
from gputui.store.metrics.step_lines import StepLines
from gputui.store.run_history import DecisionView, IncidentView


def past_decisions(history: RunHistory, *, steps_start_again: bool = False) -> list[PastDecision]:
    """The decisions of a run since a person last started it, oldest first.

    ``steps_start_again``: its steps are counted within an epoch, and show no progress.
    """
    since = person_started_at(history.transitions)
    ledger = history.checkpoints
    of_decision = {incident.incident_id: incident for incident in history.incidents}
    series = [attempt for attempt in history.attempts if attempt.created_at >= since]
    began = history.resumptions()
    reaches = (_reach(row, series, ledger, began.get(row.number), steps_start_again) for row in series)
    progressed = {row.number: reach.made for row, reach in zip(series, reaches, strict=True)}
    return [
        _past_decision(
            decision, of_decision.get(decision.incident_id), has_progressed=progressed.get(decision.attempt, False)
        )
        for decision in sorted(history.decisions, key=lambda row: row.decision_id)
        if decision.at >= since
    ]


def _past_decision(decision: DecisionView, incident: IncidentView | None, *, has_progressed: bool) -> PastDecision:
    kind = "unknown"
    step = None
    detail = ""
    if incident is not None:
        kind = incident.kind
        step = incident.step
        detail = detail_of(incident.summary)
    verdict: Verdict = "stop"
    if decision.verdict == "retry":
        verdict = "retry"
    applied = [
        action
        for action in decision.actions
        if isinstance(action, Mapping) and action.get("applied") is True and "action" in action
    ]
    changes = (
        change
        for action in reversed(applied)
        if action["action"] != UNDO
        for change in reversed(action.get("changes") or ())
    )
    return PastDecision(
        attempt=decision.attempt,
        kind=kind,
        rung=decision.rung,
        verdict=verdict,
        progressed=has_progressed,
        changed=bool(decision.params),
        actions=tuple(str(action["action"]) for action in applied),
        replaced={str(change["parameter"]): change["from"] for change in changes},
        step=step,
        detail=detail,
    )


def progress_of(history: RunHistory, number: int, *, ended_at: float, steps_start_again: bool = False) -> AttemptReach:
    """The progress of an attempt that ended at a time (UTC unix seconds).

    ``steps_start_again``: as for `past_decisions`.
    """
    since = person_started_at(history.transitions)
    attempt = next((row for row in history.attempts if row.number == number), None)
    if attempt is None:
        return AttemptReach()
    series = [row for row in history.attempts if row.created_at >= since]
    resumption = history.resumptions().get(number)
    reach = _reach(attempt, series, history.checkpoints, resumption, steps_start_again)
    return replace(reach, ran_seconds=max(0.0, ended_at - attempt.began_at))


def _reach(
    attempt: Attempt,
    series: Sequence[Attempt],
    ledger: Sequence[CheckpointRow],
    resumption: Resumption | None,
    steps_start_again: bool,
) -> AttemptReach:
    """The reach of an attempt, compared with those of the ``series`` before it."""
    before = (row.last_step for row in series if row.number < attempt.number and row.last_step is not None)
    saved = (row for row in ledger if row.is_written and row.attempt == attempt.number)
    has_saved = any(row.verdict != "invalid" for row in saved)
    # Its steps, counted from the first again, say nothing.
    is_further = resumption == "recounted" and has_saved
    if steps_start_again and _has_saved_further(attempt, ledger):
        is_further = True
    return AttemptReach(
        last_step=attempt.last_step,
        best_step_before=max(before, default=None),
        new_checkpoint=has_saved,
        further_checkpoint=is_further,
        resumption=resumption,
    )


def without_unsound_steps(attempts: Sequence[Attempt], lines: StepLines) -> list[Attempt]:
    """The attempts, each up to the step before its loss stayed not finite: what follows is no progress. Raises
    sqlite3.Error."""
    sound = []
    for attempt in attempts:
        line = unsound_since(lines, attempt.number)
        if line is not None:
            attempt = replace(attempt, last_step=line.step - 1)
        sound.append(attempt)
    return sound


def _has_saved_further(attempt: Attempt, ledger: Sequence[CheckpointRow]) -> bool:
    """Return whether an attempt that began from the newest checkpoint has written one where none
    was."""
    if attempt.resumed_from is None or any(row.left_by == attempt.number for row in ledger):
        return False
    at_first_place = {row.path: row.place for row in sorted(ledger, key=lambda row: -row.place)}
    sound = (row for row in ledger if row.is_written and row.verdict not in ("invalid", "cut", "left", "struck"))
    return any(row.attempt == attempt.number and at_first_place[row.path] == row.place for row in sound)
