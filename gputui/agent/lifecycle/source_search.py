"""The search for the files in which live attempts write metrics, of runs that leave it to gputui. Jobs look at the
files; the loop registers what they find."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job, JobKey, Purpose
from gputui.agent.lifecycle.file_search import (
    LISTED_SECONDS,
    FileLooks,
    FilesBefore,
    FileSearch,
    NewSource,
    stored_sources,
)
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import attempt_dir, overlap, source_path
from gputui.runs.command import in_run, sink_target
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import ObservationRow, put_observation
from gputui.store.runs import Run

log = logging.getLogger(__name__)

# Between two looks: soon after the start, when files appear, and later.
FIRST_SECONDS = 2.0
FIRST_LOOKS = 15  # half a minute, in which most scripts have written
LATER_SECONDS = 15.0  # a script that loads data for minutes costs little until then
DEADLINE_SECONDS = 30.0
# How long an attempt that has ended waits for the last look: on a busy machine one takes seconds, and what it does not
# find is never read.
LAST_SECONDS = DEADLINE_SECONDS


def readmit_sources(context: AgentContext, run_id: str, number: int) -> None:
    """Register the sources of an attempt that the store has lost, from its folder, inside the caller's transaction."""
    for source, begin in stored_sources(attempt_dir(context.workspace, run_id, number)):
        context.ingest.add_source(run_id, number, source, begin)


def lists_files_before(context: AgentContext, run: Run) -> bool:
    """List the files that are there before a run's next attempt, in a job.

    Until that is done, or takes too long, the result is False: the scheduler tries to start the run again, and calls
    this again.
    """
    spec = spec_of(run)
    number = run.attempt + 1
    if not is_searched(context, spec):
        return True
    run_dir = context.workspace.run_dir(run.run_id)
    listed = FilesBefore.read(run_dir)
    if listed is not None and listed.is_for(number, context.now()):
        return True
    search = search_of(context, spec, run.run_id, number, context.now())
    key = JobKey(Purpose.FILES, run.run_id, number)
    job = context.jobs.ask(key, search.list_before, deadline_seconds=LISTED_SECONDS)
    if job is None:
        return False
    try:
        job.result()
    except OSError as error:
        log.warning("%s: the files that are there before it cannot be listed: %s", run.run_id, error)
    return True


def is_searched(context: AgentContext, spec: RunSpec) -> bool:
    """Return whether the files that a run writes are looked at."""
    if spec.searched_events:
        return True
    return spec.learns_metrics and context.executors.of(spec.target).sees_checkpoints(spec.target or {})


def search_of(context: AgentContext, spec: RunSpec, run_id: str, number: int, begun_at: float) -> FileSearch:
    """The search of one attempt, which was created at a time (UTC unix seconds)."""
    run_dir = context.workspace.run_dir(run_id)
    folders = [source_path(source, spec, run_dir) for source in spec.searched_events]
    workdir = in_run(spec.workdir, spec, run_dir)
    targets = (
        sink_target(template, spec.params, run_id=run_id, run_dir=str(run_dir)) for template in spec.sinks.values()
    )
    copies = [Path(target) for target in targets if target.startswith("/")]
    return FileSearch(
        run_dir,
        number,
        workdir,
        state=context.workspace.state,
        begun_at=begun_at,
        event_folders=folders,
        learns=spec.learns_metrics,
        copies=copies,
    )


@dataclass(slots=True)
class _Watch:
    """The looks at one attempt's files.

    Attributes:
        rivals: the runs that have or had the same folder meanwhile.
        looks: how many there were.
        due_at: the next one (monotonic).
        job: the one that runs.
        last_since: when the last look was asked for, after the attempt's end (monotonic).
    """

    files: FileLooks
    rivals: set[str] = field(default_factory=set)
    looks: int = 0
    due_at: float = -math.inf
    job: Job[list[NewSource]] | None = None
    last_since: float | None = None


@dataclass(slots=True)
class SourceSearches:
    """The searches of all live attempts, by run id and number."""

    context: AgentContext
    _watches: dict[tuple[str, int], _Watch] = field(default_factory=dict)

    def poll(self, living: Collection[LiveAttempt]) -> None:
        """Register what finished looks have found, and start those that are due. Raises sqlite3.Error."""
        now = self.context.monotonic()
        for attempt in living:
            if not is_searched(self.context, attempt.resolved.spec):
                continue
            watch = self._watch(attempt)
            self._register(watch, attempt.record)
            if watch.job is None and now >= watch.due_at:
                watch.rivals |= {
                    rival.record.run_id
                    for rival in living
                    if rival is not attempt and overlap(self._workdir(rival), watch.files.search.workdir)
                }
                self._look(watch, attempt)
            if self.context.budget.is_spent():
                break

    def conclude(self, attempt: LiveAttempt) -> bool:
        """Look once more at the files of an attempt that has ended; True when that is done, or takes too long. Raises
        sqlite3.Error."""
        if not is_searched(self.context, attempt.resolved.spec):
            return True
        watch = self._watch(attempt)
        now = self.context.monotonic()
        was_last = watch.job is not None and watch.last_since is not None
        self._register(watch, attempt.record)
        if watch.job is None and watch.last_since is None:
            watch.last_since = now
            self._look(watch, attempt)
        is_done = was_last and watch.job is None
        is_late = watch.last_since is not None and now - watch.last_since > LAST_SECONDS
        if is_late and not is_done:
            log.warning("%s: its files did not answer; what it wrote last may be unread", attempt.record.run_id)
        if is_done or is_late:
            self._watches.pop((attempt.record.run_id, attempt.record.number), None)
            return True
        return False

    def _watch(self, attempt: LiveAttempt) -> _Watch:
        record = attempt.record
        spec = attempt.resolved.spec
        key = (record.run_id, record.number)
        if key not in self._watches:
            search = search_of(self.context, spec, record.run_id, record.number, record.created_at)
            self._watches[key] = _Watch(FileLooks(search))
        return self._watches[key]

    def _workdir(self, attempt: LiveAttempt) -> Path:
        spec = attempt.resolved.spec
        return in_run(spec.workdir, spec, self.context.workspace.run_dir(attempt.record.run_id))

    def _look(self, watch: _Watch, attempt: LiveAttempt) -> None:
        """Start the next look."""
        name = f"looking at what {attempt.record.run_id} writes"
        look = partial(watch.files.look, frozenset(watch.rivals))
        watch.job = self.context.jobs.start(name, look, deadline_seconds=DEADLINE_SECONDS)

    def _register(self, watch: _Watch, record: Attempt) -> None:
        """Register the sources that a finished look has found. Raises sqlite3.Error."""
        job = watch.job
        if job is None or not job.is_over:
            return
        watch.job = None
        watch.looks += 1
        pause = FIRST_SECONDS if watch.looks < FIRST_LOOKS else LATER_SECONDS
        watch.due_at = self.context.monotonic() + pause
        try:
            new_sources = job.result()
        except OSError as error:
            log.warning("%s: what it writes cannot be looked at: %s", record.run_id, error)
            # The thread of a look without an answer may still use it.
            watch.files = FileLooks(watch.files.search)
            return
        for source, begin in new_sources:
            with transaction(self.context.connection):
                if self.context.ingest.add_source(record.run_id, record.number, source, begin):
                    text = f"metrics are read from {source.path} ({source.kind}), which it has begun to write"
                    self.context.note("metrics_found", text, record.run_id, record.number, key=source.path)
        if not new_sources:
            self._note_disputed(watch, record)

    def _note_disputed(self, watch: _Watch, record: Attempt) -> None:
        """Store why a run has no metrics: a file may be of another run. Raises sqlite3.Error."""
        connection = self.context.connection
        rivals = ", ".join(sorted(watch.rivals))
        query = "SELECT 1 FROM metric_sources WHERE path = ? AND run_id != ?"
        for path in watch.files.disputed:
            if connection.execute(query, (path, record.run_id)).fetchone() is None:
                text = f"{Path(path).name} may be of this run or of {rivals}, in the same folder, and is not read"
                row = ObservationRow("no_metrics", self.context.now(), text, rank=None, step=None, ends=False)
                with transaction(connection):
                    put_observation(connection, record.run_id, record.number, row)
                return
