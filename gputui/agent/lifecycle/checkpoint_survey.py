"""Scans of checkpoint folders: the agent enters new checkpoints into the ledger while the attempt lives, when their
step and origin are certain. Jobs read the folder; the loop writes the rows."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.active_run import CheckpointScan, CheckpointWatch, LiveAttempt
from gputui.core.config import Workspace
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_writers
from gputui.recovery.checkpoint_ledger import NUMERIC_INCIDENTS
from gputui.recovery.checkpoint_search import surveyed
from gputui.recovery.history import training_began_at
from gputui.recovery.ledger_inputs import AttemptSpan, CheckpointSearch, attempt_spans
from gputui.runs.command import checkpoint_directory
from gputui.runs.executors import Executors, far
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError, parse_spec, spec_of
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.checkpoints import CheckpointRow, Neighbour
from gputui.store.events import add_event
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import read_incidents, read_transitions
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)

SURVEY_SECONDS = 10.0
UNRECORDED_SECONDS = 1.0
# Lines of a remote run without a timestamp get the time of their transfer, at most this much later.
FETCHED_SECONDS = 5.0
# A file system that does not answer for this long hangs.
DEADLINE_SECONDS = 60.0


def search_of(
    connection: sqlite3.Connection,
    workspace: Workspace,
    run: Run,
    now: float,
    *,
    executors: Executors,
    ended_at: float | None = None,
) -> CheckpointSearch | None:
    """Input of a scan for the run's checkpoints; None if its profile names none, or if only its target sees them.
    ``ended_at`` is the end of its newest attempt if the row does not have it yet. Times are UTC unix seconds."""
    spec = spec_of(run)
    folder = checkpoint_directory(spec, workspace.run_dir(run.run_id))
    if folder is None or spec.checkpoints is None:
        return None
    if not executors.of(spec.target).sees_checkpoints(spec.target or {}):
        return None
    attempts = attempt_spans(read_attempts(connection, run.run_id), has_metrics=bool(spec.metrics), now=now)
    if attempts and ended_at is not None:
        attempts = (*attempts[:-1], replace(attempts[-1], ended_at=ended_at, was_scanned_at_end=False))
    rebuilt = checkpoints.attempts_before_ledger(connection, run.run_id)
    rows = tuple(checkpoints.of_run(connection, run.run_id))
    if not rows:
        attempts = tuple(
            replace(span, was_scanned_at_end=span.was_scanned_at_end and span.number not in rebuilt)
            for span in attempts
        )
    begun_at = attempts[0].begun_at if attempts else now
    incidents = {row.attempt: (row.kind, row.step) for row in read_incidents(connection, run.run_id)}
    return CheckpointSearch(
        database=workspace.database,
        run_id=run.run_id,
        folder=folder,
        pattern=spec.checkpoints.pattern,
        rows=rows,
        attempts=attempts,
        neighbours=_neighbours(connection, workspace, run.run_id, folder, begun_at),
        incidents=incidents,
        rebuilt=rebuilt,
    )


def _neighbours(
    connection: sqlite3.Connection, workspace: Workspace, run_id: str, folder: Path, since: float
) -> tuple[Neighbour, ...]:
    """Attempts of other runs that used the folder since a time (UTC unix seconds)."""
    neighbours = checkpoints.neighbours(connection, run_id, str(folder), since)
    names = checkpoints.folders(connection, run_id, str(folder))
    for neighbour, text in checkpoints.unplaced(connection, run_id, since):
        with suppress(SpecError):
            if str(checkpoint_directory(parse_spec(text), workspace.run_dir(neighbour.run_id))) in names:
                neighbours.append(neighbour)
    return tuple(neighbours)


def write(connection: sqlite3.Connection, search: CheckpointSearch, rows: Sequence[CheckpointRow], now: float) -> None:
    """Store the changed rows of the ledger in the caller's transaction; warn if names and times contradict."""
    checkpoints.save(connection, search.run_id, search.rows, rows, now)
    contradiction = ledger.out_of_order(rows, search.attempts)
    if contradiction is not None and ledger.out_of_order(search.rows, search.attempts) is None:
        older, newer = contradiction
        add_event(
            connection,
            "checkpoints_unordered",
            f"the steps in the names of its checkpoints do not follow the order in which they were written: {newer} is "
            f"newer than {older}; the times count, and none is pruned",
            now=now,
            severity="warning",
            run_id=search.run_id,
        )


def attempt_begins(connection: sqlite3.Connection, run: Run, number: int, folder: Path | None) -> None:
    """Record in the ledger that an attempt begins from ``run.resume_from``. Works inside the caller's transaction,
    after the attempt's row was written."""
    if folder is None:
        return
    checkpoints.note_folder(connection, run.run_id, number, str(folder))
    before = tuple(checkpoints.of_run(connection, run.run_id))
    rows = read_attempts(connection, run.run_id)
    spans = attempt_spans(rows, has_metrics=bool(spec_of(run).metrics), now=rows[-1].created_at)
    earlier = tuple(span for span in spans if span.number < number)
    after = ledger.attempt_begins(before, earlier, number, run.resume_from)
    checkpoints.save(connection, run.run_id, before, after, rows[-1].created_at)


def attempts_to_resume(connection: sqlite3.Connection, workspace: Workspace, run: Run) -> list[dict[str, Any]]:
    """The attempts whose checkpoints the next attempt may resume from, if only its target sees the checkpoints; none if
    it begins from the start or from a named checkpoint. See `gputui.runs.executors.far.Course`."""
    if run.resume_from is not None:
        return []
    # Attempts before a start from scratch belong to another training.
    since = training_began_at(read_transitions(connection, run.run_id))
    attempts = [row for row in read_attempts(connection, run.run_id) if row.created_at >= since]
    spans = attempt_spans(attempts, has_metrics=bool(spec_of(run).metrics), now=0.0)
    incidents = {row.attempt: row for row in read_incidents(connection, run.run_id)}
    course: list[dict[str, Any]] = []
    for span in spans:
        incident = incidents.get(span.number)
        until = None
        if incident is not None and incident.kind in NUMERIC_INCIDENTS:
            until = (
                span.begun_at if incident.step is None else _sound_until(connection, run.run_id, span, incident.step)
            )
        failed = incident is not None and incident.kind not in ledger.EXTERNAL_INCIDENTS and not span.has_worked
        plan = far.read_record(workspace.run_dir(run.run_id) / "attempts" / str(span.number) / "attempt.json") or {}
        # Only a checkpoint named by a person is in this attempt.json; the target's own choice is not.
        base = plan.get("resume_from")
        if isinstance(base, str):
            # It was named instead of all checkpoints written so far.
            course.clear()
        course.append(
            {
                "attempt": span.number,
                "until": until,
                "failed": failed,
                "base": base if isinstance(base, str) else None,
            }
        )
    return course


def _sound_until(connection: sqlite3.Connection, run_id: str, span: AttemptSpan, step: int) -> float:
    """The last time at which an attempt's numbers were sound before they went wrong at ``step`` (UTC unix seconds), by
    the timestamps of its lines or of their transfer."""
    times = StepTimes(connection, run_id)
    at = times.done_at(span.number, step)
    if at is None:
        at = times.last_at(span.number, step - 1)
    return span.begun_at if at is None else at - FETCHED_SECONDS


def scan(search: CheckpointSearch, now: float) -> CheckpointScan:
    """Scan the folder at ``now`` (UTC unix seconds). Raises what `surveyed` raises."""
    written = checkpoint_writers.write_record(search.home, search.run_id, search.attempts, search.folder, now)
    checkpoint_writers.remove_records(search.home, search.folder, now)
    return CheckpointScan(os.path.realpath(search.folder), surveyed(search), written)


@dataclass(slots=True)
class CheckpointSurveys:
    """Scans the checkpoint folders of all live attempts, one job per run."""

    context: AgentContext

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Store finished scans and start those that are due, the longest waiting first, until the turn is spent. Raises
        sqlite3.Error."""
        now = self.context.monotonic()
        for attempt in sorted(
            living,
            key=lambda attempt: attempt.checkpoint_watch.due_at if attempt.checkpoint_watch else -math.inf,
        ):
            watch = attempt.checkpoint_watch
            if watch is None:
                # Due now: other runs with the same folder must know of the attempt before it writes there.
                watch = attempt.checkpoint_watch = CheckpointWatch(now)
            if watch.job is not None and watch.job.is_over:
                job = watch.job
                watch.job, watch.due_at = None, self.context.monotonic() + SURVEY_SECONDS
                self._take(attempt.record.number, watch, job)
            elif watch.job is None and now >= watch.due_at:
                self._begin(attempt.record.run_id, attempt.record.number, watch)
            else:
                continue
            if self.context.turn.is_spent():
                return

    def _begin(self, run_id: str, number: int, watch: CheckpointWatch) -> None:
        run = get_run(self.context.connection, run_id)
        watch.due_at = self.context.monotonic() + SURVEY_SECONDS
        try:
            watch.search = (
                None
                if run is None
                else search_of(
                    self.context.connection,
                    self.context.workspace,
                    run,
                    self.context.now(),
                    executors=self.context.executors,
                )
            )
        except SpecError:
            # The run fails when its attempt ends.
            watch.search = None
        if watch.search is not None:
            checkpoints.note_folder(self.context.connection, run_id, number, str(watch.search.folder))
            name = f"looking for checkpoints in {watch.search.folder}"
            work = partial(scan, watch.search, self.context.now())
            watch.job = self.context.jobs.start(name, work, deadline_seconds=DEADLINE_SECONDS)

    def _take(self, number: int, watch: CheckpointWatch, job: Job[CheckpointScan]) -> None:
        search = watch.search
        assert search is not None
        try:
            real, rows, is_recorded = job.result()
        except Exception as error:
            if not watch.is_reported:
                watch.is_reported = True
                log.warning("%s: %s cannot be looked into: %s", search.run_id, search.folder, error)
                text = f"its checkpoints cannot be looked for in {search.folder}: {error}"
                add_event(
                    self.context.connection,
                    "checkpoints_unreadable",
                    text,
                    now=self.context.now(),
                    key=str(search.folder),
                    severity="warning",
                    run_id=search.run_id,
                )
            return
        watch.is_reported = False
        if not is_recorded:
            # The script has not made the folder yet; other runs must know of the attempt soon after.
            watch.due_at = self.context.monotonic() + UNRECORDED_SECONDS
        # A link that is gone resolves to itself, which says less than the stored path.
        if real != str(search.folder) and checkpoints.note_real_folder(
            self.context.connection, search.run_id, number, real
        ):
            # The scan did not know all runs that use the folder.
            watch.due_at = self.context.monotonic()
            return
        if rows != search.rows:
            with transaction(self.context.connection) as connection:
                write(connection, search, rows, self.context.now())
