"""The ledger of checkpoints, kept by the agent: what living attempts write is entered while they live, so that the step
and the course of each are known by the time they are needed. The folder is read in jobs; the loop writes the rows."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.active_run import CheckpointLook, LiveAttempt
from gputui.agent.slices import TURN_SECONDS
from gputui.config import Workspace
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery.checkpoint_ledger import Rows, spans
from gputui.recovery.checkpoint_search import CheckpointSearch, surveyed
from gputui.runs.command import checkpoint_directory
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError, spec_of
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.store.events import add_event
from gputui.store.runs import Run, get_run, read_attempts, read_incidents

log = logging.getLogger(__name__)

SURVEY_SECONDS = 10.0
# A folder that does not answer for so long is on a file system that hangs.
DEADLINE_SECONDS = 60.0


def search_of(
    connection: sqlite3.Connection, workspace: Workspace, run: Run, now: float, ended_at: float | None = None
) -> CheckpointSearch | None:
    """What a look for the run's checkpoints needs, None where its profile names none. ``ended_at`` is when its newest
    attempt ended, where that is not in its row yet. Times are UTC unix seconds."""
    spec = spec_of(run)
    folder = checkpoint_directory(spec, workspace.run_dir(run.run_id))
    if folder is None or spec.checkpoints is None:
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
        neighbours=tuple(checkpoints.neighbours(connection, run.run_id, str(folder), begun_at)),
        incidents=incidents,
        rebuilt=checkpoints.attempts_before_ledger(connection, run.run_id),
    )


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


@dataclass(slots=True)
class CheckpointSurveys:
    """Looks into the checkpoint folders of all living attempts, one job a run."""

    context: AgentContext

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Enter what was found, and look again where it is time; what one turn has no time for is done in the next.
        Raises sqlite3.Error."""
        now = self.context.monotonic()
        for attempt in living:
            one = attempt.checkpoint_look
            if one is None:
                one = attempt.checkpoint_look = CheckpointLook(now + SURVEY_SECONDS)
            if one.job is not None and one.job.is_over:
                self._take(one, one.job)
                one.job, one.due_at = None, self.context.monotonic() + SURVEY_SECONDS
            elif one.job is None and now >= one.due_at:
                self._begin(attempt.record.run_id, attempt.record.number, one)
            else:
                continue
            if self.context.monotonic() - now >= TURN_SECONDS:
                return

    def _begin(self, run_id: str, number: int, one: CheckpointLook) -> None:
        run = get_run(self.context.connection, run_id)
        one.due_at = self.context.monotonic() + SURVEY_SECONDS
        try:
            one.search = (
                None
                if run is None
                else search_of(self.context.connection, self.context.workspace, run, self.context.now())
            )
        except SpecError:
            # It fails when its attempt ends.
            one.search = None
        if one.search is not None:
            checkpoints.note_folder(self.context.connection, run_id, number, str(one.search.folder))
            name = f"looking for checkpoints in {one.search.folder}"
            one.job = self.context.jobs.start(name, partial(surveyed, one.search), deadline_seconds=DEADLINE_SECONDS)

    def _take(self, one: CheckpointLook, job: Job[Rows]) -> None:
        search = one.search
        assert search is not None
        try:
            rows = job.result()
        except Exception as error:
            if not one.is_told:
                one.is_told = True
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
        one.is_told = False
        if rows != search.rows:
            with transaction(self.context.connection) as connection:
                write(connection, search, rows, self.context.now())
