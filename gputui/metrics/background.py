"""Reads of metrics files in other threads, because their file system may not answer, a search for
them may be long, another run may write them, or a file must be compared with what is stored of it.

A read uses the reader of one source, which no other thread uses meanwhile. It writes nothing; its
batch is stored by the caller, if the source is still at the same position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from gputui.metrics.batch import BATCH_BYTES, MIN_BATCH_BYTES, Batch, MetricsNote, SourceState
from gputui.metrics.sharing import Contest, Custody, Writers, contests
from gputui.metrics.sources import (
    BackgroundRead,
    OpenSource,
    OpenSources,
    PendingWork,
    ReadContext,
    SourceRow,
    SourceTable,
)
from gputui.metrics.tailer import SourceReader
from gputui.metrics.trackers import TRACKERS
from gputui.metrics.walk import MOST_ENTRIES, has_wildcards

# A read that takes longer may hang; with as many of them no other begins.
SLOW_SECONDS = 1.0
MOST_SLOW = 4
# Between two reads of a source, while lines come and in silence.
ACTIVE_INTERVAL_SECONDS = 0.25
QUIET_INTERVAL_SECONDS = 1.0
# A script may be seen writing its file only some time after it began to.
UNATTRIBUTED_SECONDS = 10.0
# How long the ends that a search found before an attempt are those at its begin.
SURVEY_SECONDS = 5.0

_NAMES = {kind: tracker[0] for kind, tracker in TRACKERS.items()}


class BackgroundSources:
    """Decides which sources are read in the background, begins their reads and takes the results.
    ``note`` reports a remark about a source once."""

    def __init__(
        self,
        read_context: ReadContext,
        table: SourceTable,
        sources: OpenSources,
        note: Callable[[OpenSource, MetricsNote], None],
    ) -> None:
        self.read_context = read_context
        self._table = table
        self._sources = sources
        self._note = note
        self._contests: dict[int, Contest] | None = None
        self._writers: Writers = {}

    def note_begin(self) -> None:
        """Find again which runs share files: an attempt has begun."""
        self._contests = None

    def must_read(self, row: SourceRow) -> bool:
        """Whether a source's files must not be touched in the caller's thread."""
        is_near = row.pattern.startswith(f"{self.read_context.run_dir(row.run_id)}/")
        return not is_near or row.format == "hf" or has_wildcards(row.pattern)

    def includes(self, source: OpenSource) -> bool:
        """Whether a source is read in the background from now on."""
        if source.read is not None:
            return True
        is_compared = source.state.first_generation < source.state.generation
        is_shared = self._contest(source) is not None
        must = source.pattern is not None and (is_compared or is_shared or self.must_read(source.row))
        if must != source.in_background:
            # A reader for the caller's thread shares its connection.
            source.close()
            source.in_background = must
        return must

    def take(self, source: OpenSource, budget_bytes: int, ended: bool) -> Batch | None:
        """The batch of a source's finished read, or None; begins the next read if that is due.
        Raises OSError."""
        read = source.read
        if read is None:
            self._begin(source, budget_bytes, ended)
            return None
        if read.ended and not ended:
            # It is for the caller that reads the rest of the attempt.
            return None
        if not read.job.is_over:
            self._note_unanswered(source)
            return None
        source.read, source.awaits_since = None, None
        source.next_read_at = time.monotonic() + QUIET_INTERVAL_SECONDS
        batch: Batch | None = read.job.result()
        if (None if read.custody is None else read.custody.contest) != self._contest(source):
            # What was read may be the file of a run that has begun since.
            source.close()
            self._begin(source, budget_bytes, ended)
            return None
        if source.reader.is_cut:
            text = f"the search for {source.pattern} ends after {MOST_ENTRIES} files and folders"
            text = f"{text}; name its folders"
            self._note(source, MetricsNote("metrics_search_cut", source.pattern, text))
        self._note_doubt(source, read.custody)
        if batch is None and ended and not read.ended:
            self._begin(source, budget_bytes, ended)
        return batch

    def read_on(self, source: OpenSource, batch: Batch, ended: bool) -> None:
        """Begin the next read if it is due, after the batch was committed: only then may the reader
        go on behind it."""
        interval = 0.0 if batch.more else ACTIVE_INTERVAL_SECONDS
        source.next_read_at = time.monotonic() + interval
        self._begin(source, BATCH_BYTES, ended)

    def _begin(self, source: OpenSource, budget_bytes: int, ended: bool) -> None:
        """Begin a read if it is due."""
        now = time.monotonic()
        if now < source.next_read_at and not ended:
            return
        source.awaits_since = now if source.awaits_since is None else source.awaits_since
        reads = [other.read for other in self._sources.by_id.values() if other.read is not None]
        slow = [read for read in reads if now - read.begun_at > SLOW_SECONDS]
        if sum(not read.job.is_over for read in slow) >= MOST_SLOW:
            self._note_unanswered(source)
            return
        reader, state, boundaries = source.reader, source.state, tuple(source.boundaries)
        budget_bytes = max(MIN_BATCH_BYTES, budget_bytes)
        custody = self._custody(source)

        def work() -> Batch | None:
            reader.gate = custody
            batch = reader.read(state, boundaries, budget_bytes=budget_bytes, ended=ended)
            return None if custody is not None and not custody.still_admits() else batch

        job = self.read_context.start(f"reading {source.pattern}", work)
        source.read = BackgroundRead(job, ended, custody, now)

    def _contest(self, source: OpenSource) -> Contest | None:
        """The runs that could write a source's files; None if it is the only one."""
        if self._contests is None:
            connection = self._table.connection
            self._contests = contests(connection, self.read_context.run_dir, _NAMES)
        return self._contests.get(source.source_id)

    def _custody(self, source: OpenSource) -> Custody | None:
        contest = self._contest(source)
        if contest is None:
            return None
        was_read = source.boundaries and source.state.position > source.boundaries[0][:2]
        inode = source.state.inode if was_read else None
        run_dir = self.read_context.run_dir(source.run_id)
        return Custody(contest, run_dir, inode, self.read_context.written_by, self._writers)

    def _note_doubt(self, source: OpenSource, custody: Custody | None) -> None:
        if custody is None or custody.doubtful is None:
            source.unattributed_since = None
            return
        now = time.monotonic()
        source.unattributed_since = source.unattributed_since or now
        if now - source.unattributed_since >= UNATTRIBUTED_SECONDS:
            others = ", ".join(sorted(run_id for run_id, _ in custody.contest.attempts[1:]))
            text = (
                f"{custody.doubtful} is not read: {others} may write it too, and gputui cannot see whose it is; "
                "let each run write below {run_dir}"
            )
            self._note(source, MetricsNote("metrics_doubtful", custody.doubtful, text))

    def _note_unanswered(self, source: OpenSource) -> None:
        if source.is_unanswered():
            text = f"{source.pattern} does not answer; its metrics are read once it does"
            self._note(source, MetricsNote("metrics_unanswered", source.pattern, text))


@dataclass(slots=True)
class _Survey:
    """A search for the ends of those files of a run that are read in the background. ``job``
    returns the state at the end of each source by its ID; it is None if there are no such files."""

    begun_at: float
    paths: list[str]
    job: PendingWork | None
    is_reported: bool = False

    @property
    def is_over(self) -> bool:
        return self.job is None or self.job.is_over


class SourceEnds:
    """The ends of a run's files before an attempt: what is behind them belongs to the attempt.
    Found in the caller's thread or, with ``background``, in others where needed."""

    def __init__(self, table: SourceTable, sources: OpenSources, background: BackgroundSources | None) -> None:
        self._table = table
        self._sources = sources
        self._background = background
        self._surveys: dict[str, _Survey] = {}

    def awaited(self, run_id: str) -> str | None:
        """Find the ends for a run's next attempt. Returns None once they are known; until then the
        path that is awaited. Call it outside of transactions, again and again."""
        survey, now = self._surveys.get(run_id), time.monotonic()
        if survey is None or (survey.is_over and now - survey.begun_at > SURVEY_SECONDS):
            survey = self._surveys[run_id] = self._begin(run_id)
        return None if survey.is_over else " or ".join(survey.paths)

    def has_new(self) -> bool:
        """Whether ends have become known since the last call."""
        surveys = [one for one in self._surveys.values() if one.job is not None]
        ended = [one for one in surveys if one.is_over and not one.is_reported]
        for survey in ended:
            survey.is_reported = True
        return bool(ended)

    def of(self, run_id: str) -> dict[int, SourceState]:
        """The state at the end of each of a run's files, by source. Call it once nothing is
        `awaited`. Raises OSError."""
        survey = self._surveys.pop(run_id, None)
        states: dict[int, SourceState] = {}
        if survey is not None and survey.job is not None:
            states.update(survey.job.result())
        for row in self._table.files_of(run_id):
            if row.source_id not in states:
                if self._background is not None and self._background.must_read(row):
                    raise BlockingIOError(f"{row.path} has not answered yet")
                states[row.source_id] = self._end(row)
        return states

    def at(self, run_id: str, offsets: Mapping[str, int]) -> dict[int, SourceState]:
        """The state of each of a run's files at an offset by path, by source. Raises OSError."""
        rows = self._table.files_of(run_id)
        return {row.source_id: self._end(row, offsets.get(row.path, 0)) for row in rows}

    def sizes(self, run_id: str, ends: Mapping[int, SourceState]) -> dict[str, int]:
        """The sizes (bytes) of a run's plain files that exist, by path, from what `of` returned."""
        rows = [row for row in self._table.files_of(run_id) if not has_wildcards(row.pattern)]
        found = {row.path: ends[row.source_id] for row in rows}
        return {path: end.byte_offset for path, end in found.items() if end.inode is not None}

    def forget(self, run_id: str) -> None:
        self._surveys.pop(run_id, None)

    def _begin(self, run_id: str) -> _Survey:
        background = self._background
        rows = self._table.files_of(run_id) if background is not None else []
        rows = [row for row in rows if background is not None and background.must_read(row)]
        if background is None or not rows:
            return _Survey(time.monotonic(), [], None)
        readers = [(row.source_id, self._sources.new_reader(row, True)) for row in rows]
        states = {row.source_id: self._table.position(row.source_id)[0] for row in rows}

        def work() -> dict[int, SourceState]:
            return {source_id: _closed_end(reader, states[source_id]) for source_id, reader in readers}

        paths = [row.path for row in rows]
        job = background.read_context.start(f"looking at {' and '.join(paths)}", work)
        return _Survey(time.monotonic(), paths, job)

    def _end(self, row: SourceRow, at_most: int | None = None) -> SourceState:
        state, _ = self._table.position(row.source_id)
        return _closed_end(self._sources.new_reader(row, False), state, at_most)


def _closed_end(reader: SourceReader, state: SourceState, at_most: int | None = None) -> SourceState:
    with closing(reader):
        return reader.end_state(state, at_most)
