"""The ledger of checkpoints, kept by the agent: what living attempts write is entered while they live, so that the step
and the course of each are known by the time they are needed. The folder is read in jobs; the loop writes the rows."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.active_run import CheckpointLook, LiveAttempt, Looked
from gputui.config import Workspace
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_writers
from gputui.recovery.checkpoint_ledger import StepSpan, spans
from gputui.recovery.checkpoint_search import CheckpointSearch, surveyed
from gputui.recovery.history import training_began_at
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
# A line without a time has that at which it was fetched from elsewhere.
FETCHED_SECONDS = 5.0
# A folder that does not answer for so long is on a file system that hangs.
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
    """What a look for the run's checkpoints needs; None if its profile names none, or only its target sees them.
    ``ended_at`` is when its newest attempt ended, where that is not in its row yet. Times are UTC unix seconds."""
    spec = spec_of(run)
    folder = checkpoint_directory(spec, workspace.run_dir(run.run_id))
    if folder is None or spec.checkpoints is None:
        return None
    if not executors.of(spec.target).sees_checkpoints(spec.target or {}):
        return None
    attempts = spans(read_attempts(connection, run.run_id), has_metrics=bool(spec.metrics), now=now)
    if attempts and ended_at is not None:
        attempts = (*attempts[:-1], replace(attempts[-1], ended_at=ended_at))
    begun_at = attempts[0].begun_at if attempts else now
    incidents = {row.attempt: (row.kind, row.step) for row in read_incidents(connection, run.run_id)}
    return CheckpointSearch(
        database=workspace.database,
        run_id=run.run_id,
        folder=folder,
        pattern=spec.checkpoints.pattern,
        rows=tuple(checkpoints.of_run(connection, run.run_id)),
        attempts=attempts,
        neighbours=_neighbours(connection, workspace, run.run_id, folder, begun_at),
        incidents=incidents,
        rebuilt=checkpoints.attempts_before_ledger(connection, run.run_id),
    )


def _neighbours(
    connection: sqlite3.Connection, workspace: Workspace, run_id: str, folder: Path, since: float
) -> tuple[Neighbour, ...]:
    """The attempts of other runs that had the folder since a moment (UTC unix seconds)."""
    found = checkpoints.neighbours(connection, run_id, str(folder), since)
    names = checkpoints.folders(connection, run_id, str(folder))
    for neighbour, text in checkpoints.unplaced(connection, run_id, since):
        with suppress(SpecError):
            if str(checkpoint_directory(parse_spec(text), workspace.run_dir(neighbour.run_id))) in names:
                found.append(neighbour)
    return tuple(found)


def write(connection: sqlite3.Connection, search: CheckpointSearch, rows: Sequence[CheckpointRow], now: float) -> None:
    """Bring the ledger up to date. Works inside the caller's transaction."""
    checkpoints.save(connection, search.run_id, search.rows, rows)
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
    """Note that an attempt begins from ``run.resume_from``. Works inside the caller's transaction, after the attempt's
    row was written."""
    if folder is None:
        return
    checkpoints.note_folder(connection, run.run_id, number, str(folder))
    before = tuple(checkpoints.of_run(connection, run.run_id))
    rows = read_attempts(connection, run.run_id)
    known = spans(rows, has_metrics=bool(spec_of(run).metrics), now=rows[-1].created_at)
    earlier = tuple(span for span in known if span.number < number)
    after = ledger.attempt_begins(before, earlier, number, run.resume_from)
    checkpoints.save(connection, run.run_id, before, after)


def course_elsewhere(connection: sqlite3.Connection, workspace: Workspace, run: Run) -> list[dict[str, Any]]:
    """The attempts whose checkpoints the next attempt may continue from, where only the machine that it runs on sees
    them; none where it begins from the start, or from one that was named. See `gputui.runs.executors.far.Course`."""
    if run.resume_from is not None:
        return []
    # What a person started from the beginning has nothing to do with what was before.
    since = training_began_at(read_transitions(connection, run.run_id))
    attempts = [row for row in read_attempts(connection, run.run_id) if row.created_at >= since]
    known = spans(attempts, has_metrics=bool(spec_of(run).metrics), now=0.0)
    incidents = {row.attempt: row for row in read_incidents(connection, run.run_id)}
    course: list[dict[str, Any]] = []
    for span in known:
        met = incidents.get(span.number)
        until = None
        if met is not None and met.kind in ledger.NUMERIC_TROUBLE:
            until = span.begun_at if met.step is None else _sound_until(connection, run.run_id, span, met.step)
        failed = met is not None and met.kind not in ledger.NOT_ITS_FAULT and not span.has_worked
        base = _named_base(workspace, run.run_id, span.number)
        if base is not None:
            # Whoever names a checkpoint goes behind what was written after it.
            course.clear()
        course.append({"attempt": span.number, "until": until, "failed": failed, "base": base})
    return course


def _named_base(workspace: Workspace, run_id: str, number: int) -> str | None:
    """The checkpoint that a person named for an attempt; one that was chosen where it ran is not in its attempt.json
    here."""
    record = far.read_record(workspace.run_dir(run_id) / "attempts" / str(number) / "attempt.json") or {}
    base = record.get("resume_from")
    return base if isinstance(base, str) else None


def _sound_until(connection: sqlite3.Connection, run_id: str, span: StepSpan, step: int) -> float:
    """When the numbers of an attempt were sound for the last time (UTC unix seconds), which went wrong at a step: by
    the times that its lines tell, or those at which they were fetched."""
    times = StepTimes(connection, run_id)
    at = times.done_at(span.number, step)
    if at is None:
        at = times.last_at(span.number, step - 1)
    return span.begun_at if at is None else at - FETCHED_SECONDS


def looked_into(search: CheckpointSearch, now: float) -> Looked:
    """Look into the folder at ``now`` (UTC unix seconds). Raises what `surveyed` raises."""
    written = checkpoint_writers.write_record(search.home, search.run_id, search.attempts, search.folder, now)
    checkpoint_writers.remove_records(search.home, search.folder, now)
    return Looked(os.path.realpath(search.folder), surveyed(search), written)


def _due_at(attempt: LiveAttempt) -> float:
    """Where there is no time for all, those that wait longest come first."""
    return float("-inf") if attempt.checkpoint_look is None else attempt.checkpoint_look.due_at


@dataclass(slots=True)
class CheckpointSurveys:
    """Looks into the checkpoint folders of all living attempts, one job a run."""

    context: AgentContext

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Enter what was found, and look again where it is time; what one turn has no time for is done in the next.
        Raises sqlite3.Error."""
        now = self.context.monotonic()
        for attempt in sorted(living, key=_due_at):
            one = attempt.checkpoint_look
            if one is None:
                # At once: others in the same folder must know it before the attempt writes there.
                one = attempt.checkpoint_look = CheckpointLook(now)
            if one.job is not None and one.job.is_over:
                job = one.job
                one.job, one.due_at = None, self.context.monotonic() + SURVEY_SECONDS
                self._take(attempt.record.number, one, job)
            elif one.job is None and now >= one.due_at:
                self._begin(attempt.record.run_id, attempt.record.number, one)
            else:
                continue
            if self.context.turn.is_spent():
                return

    def _begin(self, run_id: str, number: int, one: CheckpointLook) -> None:
        run = get_run(self.context.connection, run_id)
        one.due_at = self.context.monotonic() + SURVEY_SECONDS
        try:
            one.search = (
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
            # It fails when its attempt ends.
            one.search = None
        if one.search is not None:
            checkpoints.note_folder(self.context.connection, run_id, number, str(one.search.folder))
            name = f"looking for checkpoints in {one.search.folder}"
            look = partial(looked_into, one.search, self.context.now())
            one.job = self.context.jobs.start(name, look, deadline_seconds=DEADLINE_SECONDS)

    def _take(self, number: int, one: CheckpointLook, job: Job[Looked]) -> None:
        search = one.search
        assert search is not None
        try:
            real, rows, is_recorded = job.result()
        except Exception as error:
            if not one.is_reported:
                one.is_reported = True
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
        one.is_reported = False
        if not is_recorded:
            # The script makes the folder: others must know it soon.
            one.due_at = self.context.monotonic() + UNRECORDED_SECONDS
        # A link that is gone resolves to itself, which says less than what was noted.
        if real != str(search.folder) and checkpoints.note_real_folder(
            self.context.connection, search.run_id, number, real
        ):
            # The look did not know all who have the folder.
            one.due_at = self.context.monotonic()
            return
        if rows != search.rows:
            with transaction(self.context.connection) as connection:
                write(connection, search, rows, self.context.now())
