"""The search for the files in which live attempts write metrics, of runs that leave it to gputui. Jobs look at the
files; the loop registers what they find."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

import msgspec

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job, JobKey, Purpose
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import attempt_dir, overlap, read_executor_record, source_path
from gputui.metrics.files import fixed_part, state_at
from gputui.metrics.source_state import SourceState
from gputui.metrics.trackers import TRACKERS
from gputui.metrics.written_sources import FoundSource, may_be_source, recognised
from gputui.runs.command import in_run, sink_target
from gputui.runs.processes import processes_of
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import write_private
from gputui.runs.written_files import files_below, held_files
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
# How long an attempt waits for the list of the files before it, and how long that is good for.
LISTED_SECONDS = 10.0
# In an attempt's folder: the states of the files that were there before it, and the sources that it began to write. The
# first lies in the run's folder until the attempt has one.
BEFORE_FILE = "files_before.json"
SOURCES_FILE = "sources.json"


class NewSource(NamedTuple):
    """A source that an attempt has begun to write.

    ``begin`` is the state of its file before the attempt; None if the attempt made the file.
    """

    source: FoundSource
    begin: SourceState | None


def readmit_sources(context: AgentContext, run_id: str, number: int) -> None:
    """Register the sources of an attempt that the store has lost, from its folder, inside the caller's transaction."""
    for source, begin in _stored_sources(attempt_dir(context.workspace, run_id, number)):
        context.ingest.add_source(run_id, number, source, begin)


def _stored_sources(folder: Path) -> list[NewSource]:
    """The sources that an attempt's folder names."""
    record = read_executor_record(folder / SOURCES_FILE) or {}
    return msgspec.convert(record.get("sources", []), list[NewSource])


@dataclass(slots=True)
class FileSearch:
    """Looks at an attempt's files, again and again, each time in one job.

    Attributes:
        workdir: where it looks, beside the run's folder and apart from ``state``, gputui's own folder.
        begun_at: when the attempt was created (UTC unix seconds): what changed later may be its own.
        event_folders: globs of further folders, of which event files alone count.
        learns: whether any source counts.
        copies: files and folders to which gputui itself writes the run's metrics.
        looked_at: the sizes at which files were examined, as surely its own or not.
        before: the states of the files that were there before the attempt; None until they are read.
        new_sources: the sources that it has found; None until those of a former agent are read.
        disputed: files with metrics that it may have written, or one of its rivals.
    """

    run_dir: Path
    number: int
    workdir: Path
    state: Path
    begun_at: float
    event_folders: Sequence[str] = ()
    learns: bool = True
    copies: Sequence[Path] = ()
    looked_at: dict[tuple[str, bool], int] = field(default_factory=dict)
    before: dict[str, SourceState] | None = None
    new_sources: list[NewSource] | None = None
    disputed: list[str] = field(default_factory=list)

    def look(self, rivals: Collection[str]) -> list[NewSource]:
        """Look for the files with metrics that the attempt has written. Raises OSError.

        Args:
            rivals: other live runs that have or had the same folders; with any, only the files count that the
                attempt's own processes hold open.

        Returns:
            All sources so far.
        """
        processes = processes_of(self.run_dir, self.number)
        open_files = held_files(process.pid for process in processes)
        sizes = self._sizes(open_files)
        before = self._before(sizes)
        if self.new_sources is None:
            self.new_sources = _stored_sources(self.folder)
        already = len(self.new_sources)
        changed_sizes = self._changed_sizes(sizes, before)
        written = frozenset(map(Path, changed_sizes))
        for path, size in changed_sizes.items():
            is_own = path in open_files or path.startswith(f"{self.run_dir}/") or not rivals
            is_known = path in self.disputed and not is_own
            if not size or is_known or size == self.looked_at.get((path, is_own)):
                continue
            self.looked_at[path, is_own] = size
            with suppress(OSError):
                source = recognised(Path(path), written)
                if source is None or any(source.path == earlier.source.path for earlier in self.new_sources):
                    continue
                if is_own:
                    self.new_sources.append(NewSource(source, before.get(path)))
                else:
                    self.disputed.append(path)
        if len(self.new_sources) > already:
            write_private(self.folder / SOURCES_FILE, {"sources": msgspec.to_builtins(self.new_sources)})
        return [*self.new_sources]

    def _changed_sizes(
        self, sizes: Mapping[str, tuple[int, float]], before: Mapping[str, SourceState]
    ) -> dict[str, int]:
        """The sizes of the files that were written since the attempt began."""
        changed: dict[str, int] = {}
        for path, (size, modified_at) in sizes.items():
            state = before.get(path)
            if modified_at >= self.begun_at or (state is not None and state.byte_offset != size):
                changed[path] = size
        return changed

    @property
    def folder(self) -> Path:
        """The attempt's own folder."""
        return self.run_dir / "attempts" / str(self.number)

    def _sizes(self, open_files: Collection[str]) -> Mapping[str, tuple[int, float]]:
        """Size (bytes) and last change (UTC unix seconds) of each file that may have metrics."""
        records = [self.run_dir / name for name in ("attempts", "incidents", "sinks")]
        paths = [path for path in open_files if not path.startswith(f"{self.state}/")]
        if self.learns:
            paths += [entry.path for entry in files_below(self.workdir, (self.state,))]
            paths += [entry.path for entry in files_below(self.run_dir, records)]
        for pattern in self.event_folders:
            paths += [entry.path for entry in files_below(fixed_part(pattern))]
        sizes = {}
        for path in paths:
            if any(PurePath(path).is_relative_to(copy) for copy in self.copies):
                continue
            if may_be_source(PurePath(path)) and (self.learns or self._is_event_file(PurePath(path))):
                with suppress(OSError):
                    status = Path(path).stat()
                    sizes[path] = (status.st_size, status.st_mtime)
        return sizes

    def _is_event_file(self, path: PurePath) -> bool:
        """Return whether a file is an event file in one of the folders or below."""
        is_below = any(fnmatchcase(str(folder), pattern) for folder in path.parents for pattern in self.event_folders)
        return is_below and fnmatchcase(path.name, TRACKERS["tensorboard"].pattern)

    def _before(self, sizes: Mapping[str, tuple[int, float]]) -> Mapping[str, SourceState]:
        """The states of the files before the attempt, none of an empty one; kept in its folder for the next agent.

        If nobody listed them before the attempt began, they are those of the files that did not change since.
        """
        if self.before is not None:
            return self.before
        stored = FilesBefore.read(self.folder)
        listed = stored or FilesBefore.read(self.run_dir)
        if listed is None or not listed.is_for(self.number, self.begun_at):
            unchanged = {path: size for path, (size, at) in sizes.items() if at < self.begun_at}
            listed = FilesBefore(self.number, self.begun_at, _source_states(unchanged))
        if stored is None:
            write_private(self.folder / BEFORE_FILE, msgspec.to_builtins(listed))
        self.before = listed.files
        return self.before

    def list_before(self) -> None:
        """List the files that are there before the attempt, in its run's folder, since it has none yet. Raises
        OSError."""
        sizes = {path: size for path, (size, _) in self._sizes(()).items()}
        listed = FilesBefore(self.number, self.begun_at, _source_states(sizes))
        write_private(self.run_dir / BEFORE_FILE, msgspec.to_builtins(listed))


def _source_states(sizes: Mapping[str, int]) -> dict[str, SourceState]:
    """The states of files at their sizes, without those that are empty or cannot be read."""
    states = {}
    for path, size in sizes.items():
        with suppress(OSError):
            state = state_at(Path(path), size)
            if state is not None:
                states[path] = state
    return states


class FilesBefore(msgspec.Struct, frozen=True):
    """The files that were there ``at`` a time (UTC unix seconds) before an attempt, which is not created yet."""

    attempt: int
    at: float
    files: dict[str, SourceState]

    @classmethod
    def read(cls, folder: Path) -> FilesBefore | None:
        """The list in the folder of an attempt, or the newest of a run in its folder; None if there is none."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((folder / BEFORE_FILE).read_bytes(), type=cls)
        return None

    def is_for(self, attempt: int, now: float) -> bool:
        """Return whether it shows what is there before an attempt that is created at a time (UTC unix seconds)."""
        return self.attempt == attempt and now - self.at < LISTED_SECONDS


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

    search: FileSearch
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
                    if rival is not attempt and overlap(self._workdir(rival), watch.search.workdir)
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
            self._watches[key] = _Watch(search)
        return self._watches[key]

    def _workdir(self, attempt: LiveAttempt) -> Path:
        spec = attempt.resolved.spec
        return in_run(spec.workdir, spec, self.context.workspace.run_dir(attempt.record.run_id))

    def _look(self, watch: _Watch, attempt: LiveAttempt) -> None:
        """Start the next look."""
        name = f"looking at what {attempt.record.run_id} writes"
        look = partial(watch.search.look, frozenset(watch.rivals))
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
            watch.search = replace(watch.search, looked_at={}, before=None, new_sources=None, disputed=[])
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
        for path in watch.search.disputed:
            if connection.execute(query, (path, record.run_id)).fetchone() is None:
                text = f"{Path(path).name} may be of this run or of {rivals}, in the same folder, and is not read"
                row = ObservationRow("no_metrics", self.context.now(), text, rank=None, step=None, ends=False)
                with transaction(connection):
                    put_observation(connection, record.run_id, record.number, row)
                return
