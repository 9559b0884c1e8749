"""Scans of checkpoint folders: before an attempt begins, while it lives, and at its end. Jobs read the folder; the
loop writes the rows."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.active_run import CheckpointScan, CheckpointWatch, LiveAttempt
from gputui.core.config import PRIVATE_FILE_MODE, Workspace, read_regular
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, AttemptSpan, Rows, attempt_spans
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.recovery.history import training_began_at
from gputui.runs.command import checkpoint_directory
from gputui.runs.executors import Executors, far
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError, spec_of
from gputui.runs.submission import write_private
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.checkpoints import CheckpointRow
from gputui.store.events import add_event
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import read_incidents, read_transitions
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)

SCAN_SECONDS = 10.0
# Lines of a remote run without a timestamp get the time of their transfer, at most this much later.
FETCHED_SECONDS = 5.0
# A file system that does not answer for this long hangs.
DEADLINE_SECONDS = 60.0
CLAIM_FILE = ".gputui-home"
LEDGER_FILE = "checkpoints.json"
MAX_LEDGER_BYTES = 64 << 20
TWO_HOMES = "two homes of gputui write in this folder, which is not supported"


class _KeptLedger(Struct):
    """The ledger of a scan (UTC unix seconds) as an attempt's folder keeps it."""

    at: float
    rows: Rows


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
    writer, since = None, now
    if attempts:
        newest = attempts[-1]
        since = checkpoints.scanned_at(connection, run.run_id, newest.number) or newest.begun_at
        # What appeared since the last scan in its life is its own, also after its end.
        writer = newest.number if newest.ended_at is None or since < newest.ended_at else None
        attempts = (*attempts[:-1], newest if ended_at is None else replace(newest, ended_at=ended_at))
    return CheckpointSearch(
        database=workspace.database,
        run_id=run.run_id,
        folder=folder,
        pattern=spec.checkpoints.pattern,
        rows=tuple(checkpoints.of_run(connection, run.run_id, with_gone=True)),
        attempts=attempts,
        writer=writer,
        since=since,
        neighbours=() if writer is None else tuple(checkpoints.neighbours(connection, run.run_id, since)),
    )


def write(connection: sqlite3.Connection, search: CheckpointSearch, rows: Sequence[CheckpointRow]) -> None:
    """Store the changed rows of the ledger in the caller's transaction."""
    checkpoints.save(connection, search.run_id, search.rows, rows)


def attempt_begins(
    connection: sqlite3.Connection, run: Run, number: int, folder: Path | None, own: Path | None = None
) -> None:
    """Record in the ledger that an attempt begins from ``run.resume_from``: what is in it lay there before. Works
    inside the caller's transaction, after the attempt's row was written. ``own`` is the attempt's folder."""
    if folder is None:
        return
    before = tuple(checkpoints.of_run(connection, run.run_id, with_gone=True))
    rows = read_attempts(connection, run.run_id)
    spans = attempt_spans(rows, has_metrics=bool(spec_of(run).metrics), now=rows[-1].created_at)
    earlier = tuple(span for span in spans if span.number < number)
    checkpoints.note_scan(connection, run.run_id, number, str(folder), rows[-1].created_at)
    after = ledger.attempt_begins(before, earlier, number, run.resume_from)
    checkpoints.save(connection, run.run_id, before, after)
    if own is not None:
        keep(own, after, rows[-1].created_at)


def attempt_ended(
    connection: sqlite3.Connection, search: CheckpointSearch, rows: Rows, own: Path, *, is_seen: bool, now: float
) -> None:
    """Store the ledger at the end of an attempt, whose folder is ``own``, in the caller's transaction. Unless its
    checkpoints were seen, the next scan finds what it left. ``now`` is UTC unix seconds."""
    write(connection, search, rows)
    newest = search.attempts[-1]
    if is_seen:
        at = max(now, newest.ended_at or now)
        checkpoints.note_scan(connection, search.run_id, newest.number, str(search.folder), at)
        keep(own, rows, at)


def keep(own: Path, rows: Rows, at: float) -> None:
    """Keep the ledger of a scan (UTC unix seconds) in an attempt's folder too, from which it is read back if the
    database is lost or restored."""
    try:
        write_private(own / LEDGER_FILE, {"at": at, "rows": msgspec.to_builtins(rows)})
    except OSError as error:
        log.warning("%s cannot be written: %s", own / LEDGER_FILE, error)


def restore(connection: sqlite3.Connection, run_id: str, run_dir: Path) -> None:
    """Put the ledger that the newest attempt of a run kept, if one can be read, in the place of the stored one, in the
    caller's transaction."""
    attempts = [path for path in (run_dir / "attempts").glob("[0-9]*") if path.name.isdigit()]
    for own in sorted(attempts, key=lambda path: int(path.name), reverse=True):
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            kept = msgspec.json.decode(read_regular(own / LEDGER_FILE, MAX_LEDGER_BYTES), type=_KeptLedger)
            connection.execute("DELETE FROM checkpoints WHERE run_id = ?", (run_id,))
            checkpoints.save(connection, run_id, (), kept.rows)
            checkpoints.note_scan(connection, run_id, int(own.name), None, kept.at)
            return


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
        unsound = StepTimes(connection, run.run_id).unsound_since(span.number)
        if unsound is not None:
            until = unsound[1] - FETCHED_SECONDS
        elif incident is not None and incident.kind in NUMERIC_INCIDENTS:
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


def claim(folder: Path, home: Path) -> int | None:
    """Lock a folder outside of the home until the descriptor is closed; None if it need not be locked. Raises
    HeldByOtherHomeError."""
    if not folder.is_dir() or folder.is_relative_to(home):
        return None
    try:
        descriptor = os.open(folder / CLAIM_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    except OSError:
        return None  # nobody can write here, or another user does
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, os.fsencode(home), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        if holder not in (b"", os.fsencode(home)):
            raise HeldByOtherHomeError(f"{TWO_HOMES}: {folder} is also of {os.fsdecode(holder)}") from None
        return None
    except OSError:
        os.close(descriptor)  # a file system without locks
        return None
    return descriptor


class HeldByOtherHomeError(Exception):
    """Attempts of another home write into the folder."""


def scan(search: CheckpointSearch, now: float) -> CheckpointScan:
    """Scan the folder of an attempt at ``now`` (UTC unix seconds). Raises what `surveyed` raises."""
    descriptor = None
    try:
        descriptor = claim(search.real_folder, search.home)
    except HeldByOtherHomeError as error:
        search = replace(search, intruder=str(error))
    return CheckpointScan(str(search.real_folder), surveyed(search, lambda: now), now, descriptor, search.intruder)


@dataclass(slots=True)
class CheckpointSurveys:
    """Scans the checkpoint folders of all live attempts, one job per run."""

    context: AgentContext
    # By folder, the lock that keeps other homes out, while an attempt lives there.
    claims: dict[str, int] = field(default_factory=dict)

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
                watch = attempt.checkpoint_watch = CheckpointWatch(now)
            if watch.job is not None and watch.job.is_over:
                job = watch.job
                watch.job, watch.due_at = None, self.context.monotonic() + SCAN_SECONDS
                self._take(attempt.record.number, watch, job)
            elif watch.job is None and now >= watch.due_at:
                self._begin(attempt.record.run_id, watch)
            else:
                continue
            if self.context.turn.is_spent():
                return
        used = {attempt.checkpoint_watch.folder for attempt in living if attempt.checkpoint_watch is not None}
        for folder in self.claims.keys() - used:
            os.close(self.claims.pop(folder))

    def _begin(self, run_id: str, watch: CheckpointWatch) -> None:
        context = self.context
        run = get_run(context.connection, run_id)
        watch.search, watch.due_at, now = None, context.monotonic() + SCAN_SECONDS, context.now()
        # The run fails when its attempt ends if its specification cannot be read.
        with suppress(SpecError):
            if run is not None:
                watch.search = search_of(context.connection, context.workspace, run, now, executors=context.executors)
        if watch.search is not None:
            name = f"looking for checkpoints in {watch.search.folder}"
            work = partial(scan, watch.search, now)
            watch.job = context.jobs.start(name, work, deadline_seconds=DEADLINE_SECONDS)

    def _take(self, number: int, watch: CheckpointWatch, job: Job[CheckpointScan]) -> None:
        search = watch.search
        assert search is not None
        try:
            seen = job.result()
        except Exception as error:
            if not watch.is_reported:
                log.warning("%s: %s cannot be looked into: %s", search.run_id, search.folder, error)
                text = f"its checkpoints cannot be looked for in {search.folder}: {error}"
                self._report(watch, search, "checkpoints_unreadable", text)
            return
        watch.folder = seen.folder
        self.claims |= {} if seen.claim is None else {seen.folder: seen.claim}
        if seen.intruder is not None and not watch.is_reported:
            self._report(watch, search, "checkpoints_shared", seen.intruder)
        watch.is_reported = seen.intruder is not None
        with transaction(self.context.connection) as connection:
            checkpoints.note_scan(connection, search.run_id, number, seen.folder, seen.at)
            write(connection, search, seen.rows)

    def _report(self, watch: CheckpointWatch, search: CheckpointSearch, kind: Any, text: str) -> None:
        watch.is_reported = True
        connection, now, key = self.context.connection, self.context.now(), str(search.folder)
        add_event(connection, kind, text, now=now, key=key, severity="warning", run_id=search.run_id)
