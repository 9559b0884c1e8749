"""Looking at what an attempt left behind, in a job: checkpoints of many gigabytes are read whole, and the agent's loop
waits for nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gputui.recovery.checkpoint_ledger import NUMERIC_TROUBLE, attempt_ended, candidates
from gputui.recovery.checkpoint_search import CheckpointChoice, CheckpointSearch, choose, surveyed, trouble_began
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, Observation, collect
from gputui.redaction import BY_LOOK, Redactor
from gputui.store.runs import Attempt


@dataclass(frozen=True, slots=True)
class Task:
    """Where to look: the attempt's folder, and where its checkpoints are, None where its profile names none.
    ``unanswered`` is why the checkpoints' folder is not to be looked into: a look there did not end."""

    folder: Path
    attempt: Attempt
    exit_record: Mapping[str, Any] | None
    survivors: tuple[int, ...]
    launcher: str
    rebooted: bool
    ended_at: float
    checkpoints: CheckpointSearch | None
    checkpoints_wanted: int
    redactor: Redactor = BY_LOOK
    observed: tuple[Observation, ...] = ()
    unanswered: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, without the secrets in it. ``incident`` says why the attempt ended, should it have failed;
    ``checkpoints`` is the ledger after it, with what may be resumed from where it did; None where the profile names no
    checkpoints."""

    evidence: Evidence
    incident: Incident
    checkpoints: CheckpointChoice | None


def examine(task: Task) -> Findings:
    """Read logs, error files and checkpoints. Files that cannot be read are named in the evidence."""
    record = None if task.exit_record is None else ExitRecord.from_json(task.exit_record)
    if record is not None and task.survivors:
        record = replace(record, survivors=tuple(sorted({*record.survivors, *task.survivors})))
    evidence = collect(
        task.folder,
        exit=record,
        launcher=task.launcher,
        started_at=task.attempt.started_at,
        ended_at=task.ended_at,
        last_step=task.attempt.last_step,
        rebooted=task.rebooted,
        # What ended well before it could be ended did not need to be.
        observed=() if record is not None and record.clean and not record.stop_requested else task.observed,
    )
    # Judged by what was said, not by what may be shown of it.
    incident = classify(evidence, task.redactor.text)
    evidence = Evidence.from_json(task.redactor.value(evidence.to_json()))
    failed = outcome(evidence, stop_intended=task.attempt.stop_requested is not None) == "failed"
    search = task.checkpoints
    found = None if search is None else _checkpoints(search, task, incident if failed else None)
    return Findings(evidence, incident, found)


def _checkpoints(search: CheckpointSearch, task: Task, incident: Incident | None) -> CheckpointChoice:
    """The ledger after the attempt; of one that failed also what may be resumed from."""
    kind, step = (None, None) if incident is None else (incident.kind, incident.step)
    try:
        if task.unanswered is not None:
            raise OSError(task.unanswered)
        rows = surveyed(search)
    except OSError as error:
        # What the ledger holds is there still, on a disk that does not answer now.
        rows = attempt_ended(search.rows, search.attempts, task.attempt.number, kind, step)
        is_lost = bool(candidates(rows, search.attempts))
        return CheckpointChoice(rows, unreadable=f"{search.folder}: {error.strerror or error}" if is_lost else None)
    began_at = trouble_began(search, task.attempt.number, step) if kind in NUMERIC_TROUBLE else None
    rows = attempt_ended(rows, search.attempts, task.attempt.number, kind, step, began_at)
    return CheckpointChoice(rows) if incident is None else choose(rows, search.attempts, task.checkpoints_wanted)
