"""Looking at what an attempt left behind, in a thread: checkpoints of many gigabytes are read whole, and the agent's
loop waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gputui.recovery.checkpoints import CheckpointInfo, survey
from gputui.recovery.classify import Incident, classify
from gputui.recovery.evidence import Evidence, ExitRecord, Observation, collect
from gputui.recovery.resume import NUMERIC_TROUBLE
from gputui.redaction import BY_LOOK, Redactor
from gputui.runs.repository import AttemptRecord


@dataclass(frozen=True, slots=True)
class Task:
    """Where to look: the attempt's folder, and its checkpoints where it may have to go on from one."""

    folder: Path
    attempt: AttemptRecord
    exit_record: Mapping[str, Any] | None
    survivors: tuple[int, ...]
    launcher: str
    rebooted: bool
    ended_at: float
    checkpoint_folder: Path | None
    checkpoint_pattern: str
    checkpoints_wanted: int
    redactor: Redactor = BY_LOOK
    observed: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, without the secrets in it. ``incident`` says why the attempt ended, should it have failed;
    ``checkpoints`` are the newest first, none where it ended well or was stopped."""

    evidence: Evidence
    incident: Incident
    checkpoints: tuple[CheckpointInfo, ...]


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
    ended_well = record is not None and record.clean and not record.stop_requested
    if task.checkpoint_folder is None or ended_well or task.attempt.stop_requested is not None:
        return Findings(evidence, incident, ())
    # Of numbers that went wrong, the newest checkpoints are a part; those that are of use may lie far behind.
    before = incident.step if incident.kind in NUMERIC_TROUBLE else None
    found = survey(task.checkpoint_folder, task.checkpoint_pattern, wanted=task.checkpoints_wanted, before=before)
    return Findings(evidence, incident, tuple(found))


class Examination:
    """One examination under way since ``begun_at`` (monotonic). ``wake`` is called from its thread when it is over."""

    def __init__(self, task: Task, wake: Callable[[], None], begun_at: float) -> None:
        self.task = task
        self.begun_at = begun_at
        self._wake = wake
        self._findings: Findings | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"examine-{task.attempt.run_id}", daemon=True)
        self._thread.start()

    def findings(self) -> Findings | None:
        """What was found, or None while it is being looked for. Raises what the examination raised."""
        if self._error is not None:
            raise self._error
        return self._findings

    def _run(self) -> None:
        try:
            self._findings = examine(self.task)
        except Exception as error:
            self._error = error
        self._wake()
