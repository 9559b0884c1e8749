"""The sources of metrics: what the store knows of them, their readers, and their ends before an
attempt."""

from __future__ import annotations

import fnmatch
import glob
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import Redactor
from gputui.metrics.batch import LineSource
from gputui.metrics.earlier_lines import EarlierLines
from gputui.metrics.files import has_wildcards, may_overlap
from gputui.metrics.formats import HISTORY, PRINTED_STREAMS, Reading, format_named
from gputui.metrics.history import HistoryReader
from gputui.metrics.line_format import LineFormat
from gputui.metrics.null_values import NullReader
from gputui.metrics.reader import FileReader, ReadSource
from gputui.metrics.reread import EarlierReading
from gputui.metrics.rewritten import EarlierVersions
from gputui.metrics.source_state import Arrivals, Boundary, SourceState
from gputui.metrics.trackers import TRACKERS
from gputui.metrics.written_sources import FoundSource
from gputui.runs.spec import SpecError
from gputui.runs.stored_spec import parse_spec
from gputui.store.metrics.stored_lines import END, START, LineQuery, rows_between

# The format of an attempt's output, which is a source of its own. The run's source of format
# PRINTED only says how to read it.
PRINTED = "stdout"
ATTEMPT_OUTPUT = "output"

# How long the ends that a search found before an attempt are those at its begin.
SURVEY_SECONDS = 5.0

# From which a new reader learns what nulls mean.
_NEWEST_LINES = 200

_COLUMNS = "s.source_id, s.run_id, s.path, s.format, s.reading"

# The newest attempts of runs that live, or ended while another one lived, and the sources of their
# profiles.
_PARTIES = f"""
WITH lived AS (
    SELECT run_id, max(number) AS number, max(coalesce(ended_at, 9e99)) AS ended_at FROM attempts
    WHERE ended_at IS NULL OR ended_at > (SELECT min(created_at) FROM attempts WHERE ended_at IS NULL)
    GROUP BY run_id
)
SELECT {_COLUMNS}, a.created_at, lived.ended_at
FROM lived JOIN attempts AS a USING (run_id, number) JOIN metric_sources AS s USING (run_id)
WHERE s.format NOT IN ('{PRINTED}', '{ATTEMPT_OUTPUT}')
"""  # noqa: S608


class ReadContext(Struct, frozen=True):
    """The context of reads in other threads.

    Attributes:
        start: Begins work, by a name for the log.
        connect: Opens the store for the thread that calls it.
        run_dir: The folder of a run, whose file system answers.
    """

    start: Callable[[str, Callable[[], Any]], Future[Any]]
    connect: Callable[[], sqlite3.Connection]
    run_dir: Callable[[str], Path]


class SourceRow(NamedTuple):
    """A source as it is registered.

    Attributes:
        path: A file, a glob or a folder, see `MetricsIngest.open_source`.
        format: The name of a format, a tracker's kind, HISTORY, PRINTED or ATTEMPT_OUTPUT.
        reading: A `Reading` as JSON.
    """

    source_id: int
    run_id: str
    path: str
    format: str
    reading: str | None

    @property
    def how(self) -> Reading:
        return msgspec.json.decode(self.reading or "{}", type=Reading)

    def with_learned(self, learned: Any) -> SourceRow:
        """The source as the next reader must know it."""
        return self._replace(reading=msgspec.json.encode(replace(self.how, learned=learned)).decode())

    def file_format(self) -> LineFormat:
        """The format of its files, which are no `HISTORY`."""
        if self.format in TRACKERS:
            return TRACKERS[self.format].file_format(self.how.place, self.how.learned)
        if self.format == ATTEMPT_OUTPUT:
            return format_named(PRINTED, self.how)
        return format_named(self.format, self.how)

    @property
    def pattern(self) -> str:
        """The path or glob of its files."""
        if self.format not in TRACKERS:
            return self.path
        pattern = TRACKERS[self.format].pattern
        is_file = fnmatch.fnmatchcase(PurePath(self.path).name, PurePath(pattern).name)
        if is_file:
            return self.path
        return f"{self.path}/{pattern}"


class SourceTable:
    """The tables ``metric_sources`` and ``metric_boundaries``, and readers of the sources. Methods
    that write work inside the caller's transaction. All raise sqlite3.Error."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float],
        redactor_of: Callable[[str], Redactor],
        context: ReadContext | None,
    ) -> None:
        self.context = context
        self._connection = connection
        self._clock = clock
        self._redactor_of = redactor_of

    def register(self, run_id: str, path: str, kind: str, reading: Reading) -> None:
        """Add a source, unless the run has it. See `MetricsIngest.open_source`."""
        if kind in PRINTED_STREAMS:
            reading = replace(reading, streams=PRINTED_STREAMS[kind])
            kind = PRINTED
        if kind != HISTORY and kind not in TRACKERS:
            format_named(kind, reading)
        self._insert(run_id, path, kind, msgspec.json.encode(reading).decode())

    def files_of(self, run_id: str) -> list[SourceRow]:
        """The sources that the run's profile names, without the output of its attempts."""
        return self._rows(f"s.run_id = ? AND s.format NOT IN ('{PRINTED}', '{ATTEMPT_OUTPUT}')", run_id)

    def read_of(self, run_id: str) -> list[SourceRow]:
        """All sources of a run with lines of their own."""
        return self._rows(f"s.run_id = ? AND s.format != '{PRINTED}'", run_id)

    def growing(self, condition: str, *values: str) -> list[SourceRow]:
        """The sources that can still grow, of runs that satisfy an SQL condition: of outputs only
        those of the newest attempt."""
        return self._rows(
            f"{condition} AND s.format != '{PRINTED}' "  # noqa: S608
            f"AND (s.format != '{ATTEMPT_OUTPUT}' OR (SELECT max(b.attempt) "
            "FROM metric_boundaries AS b WHERE b.source_id = s.source_id) = (SELECT max(b.attempt) "
            "FROM metric_sources AS o JOIN metric_boundaries AS b USING (source_id) "
            f"WHERE o.run_id = s.run_id AND o.format = '{ATTEMPT_OUTPUT}'))",
            *values,
        )

    def _rows(self, condition: str, *values: str) -> list[SourceRow]:
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM metric_sources AS s JOIN runs USING (run_id) "  # noqa: S608
            f"WHERE {condition} ORDER BY s.source_id",
            values,
        )
        return [SourceRow(*row) for row in rows.fetchall()]

    def position(self, source_id: int) -> tuple[SourceState, list[Boundary]]:
        """The state of a source, and the positions where its attempts begin."""
        row = self._connection.execute(
            "SELECT inode, generation, byte_offset, skipping, fingerprint, first_generation "
            "FROM metric_sources WHERE source_id = ?",
            (source_id,),
        ).fetchone()
        boundaries = self._connection.execute(
            "SELECT generation, byte_offset, attempt FROM metric_boundaries WHERE source_id = ? "
            "ORDER BY generation, byte_offset, attempt",
            (source_id,),
        ).fetchall()
        if row is None:
            return SourceState(), []
        inode, generation, offset, skipping, *rest = row
        state = SourceState(inode, generation, offset, bool(skipping), *rest)
        return state, [Boundary(*values) for values in boundaries]

    def begin_attempt(self, run_id: str, attempt: int, ends: Mapping[int, SourceState], rank_output: str) -> None:
        """Store where the lines of an attempt begin, and register its output: one file per stream.

        Args:
            ends: The ends of the run's files before it, by source.
            rank_output: As of `MetricsIngest.begin_attempt`.
        """
        for printed in self._rows(f"s.run_id = ? AND s.format = '{PRINTED}'", run_id):
            output = f"{glob.escape(printed.path)}/attempts/{attempt}/{rank_output}"
            streams = printed.how.streams
            with_batch = replace(printed.how, batch_size=self._batch_size(run_id, attempt))
            reading = msgspec.json.encode(with_batch).decode()
            for path in dict.fromkeys(output.replace("{stream}", stream) for stream in streams):
                self._insert(run_id, path, ATTEMPT_OUTPUT, reading)
                (source,) = self._rows("s.run_id = ? AND s.path = ?", run_id, path)
                self._add_boundary(source.source_id, (0, 0), attempt)
        for source_id, end in ends.items():
            self._begin_at(source_id, end, attempt)

    def _batch_size(self, run_id: str, attempt: int) -> int | None:
        """The samples of a rank's batch in an attempt; None if no parameter says so."""
        row = self._connection.execute(
            "SELECT spec, a.params FROM runs JOIN attempts AS a USING (run_id) WHERE run_id = ? AND number = ?",
            (run_id, attempt),
        ).fetchone()
        if row is None:
            return None
        try:
            spec = parse_spec(row[0])
            params = orjson.loads(row[1])
        except SpecError:
            return None
        name = spec.role("batch_size", params)
        size = params.get(name)
        if type(size) is not int or size < 1:
            return None
        if spec.scopes.get(name or "") == "global":
            return size // spec.nproc
        return size

    def _begin_at(self, source_id: int, end: SourceState, attempt: int) -> None:
        _, boundaries = self.position(source_id)
        # Lines before a run's first attempt are not its own: they count as read.
        if not boundaries and end.byte_offset:
            self._connection.execute(
                "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, "
                "fingerprint = ?, first_generation = ? WHERE source_id = ?",
                (end.inode, *end.position, end.fingerprint, end.generation, source_id),
            )
        self._add_boundary(source_id, end.position, attempt)

    def add(self, run_id: str, attempt: int, source: FoundSource, begin: SourceState | None) -> bool:
        """Register a source that an attempt has begun to write. See `MetricsIngest.add_source`."""
        if self._rows("s.run_id = ? AND s.path = ?", run_id, source.path):
            return False
        self.register(run_id, source.path, source.kind, source.reading)
        (row,) = self._rows("s.run_id = ? AND s.path = ?", run_id, source.path)
        self._begin_at(row.source_id, begin or SourceState(), attempt)
        return True

    def learn(self, row: SourceRow, inherited: Any) -> None:
        """Store what a source has shown for its next reader, and what later attempts inherit of it."""
        self._connection.execute(
            "UPDATE metric_sources SET reading = ? WHERE source_id = ?", (row.reading, row.source_id)
        )
        if inherited is None:
            return
        self._connection.execute(
            "UPDATE metric_sources SET reading = json_set(reading, '$.learned', json(?)) "
            "WHERE run_id = ? AND format = ?",
            (msgspec.json.encode(inherited).decode(), row.run_id, PRINTED),
        )

    def rivals(self) -> dict[int, str]:
        """The sources whose files other runs could write that lived during the newest attempt, with
        the IDs of these runs. Files in a run's own folder are its own."""
        if self.context is None:
            return {}
        parties = []
        for *columns, began_at, ended_at in self._connection.execute(_PARTIES):
            row = SourceRow(*columns)
            folder = str(self.context.run_dir(row.run_id))
            if not row.pattern.startswith((f"{folder}/", f"{glob.escape(folder)}/")):
                parties.append((row, began_at, ended_at))
        rivals = {}
        for row, began_at, _ in parties:
            others = {
                rival.run_id
                for rival, _, ended_at in parties
                if rival.run_id != row.run_id and ended_at > began_at and may_overlap(row.pattern, rival.pattern)
            }
            if others:
                rivals[row.source_id] = ", ".join(sorted(others))
        return rivals

    def needs_thread(self, row: SourceRow) -> bool:
        """Return whether a source's files must not be touched in the caller's thread: they are not
        plain files of the run's folder."""
        if self.context is None or row.format == ATTEMPT_OUTPUT:
            return False
        is_near = row.pattern.startswith(f"{self.context.run_dir(row.run_id)}/")
        return not is_near or row.format == HISTORY or has_wildcards(row.pattern)

    def reader(
        self,
        row: SourceRow,
        *,
        in_thread: bool,
        refused: Collection[str] = (),
        arrivals: Arrivals | None = None,
    ) -> FileReader | HistoryReader:
        """Make a reader of a source.

        Args:
            in_thread: It is read in another thread than this one.
            refused: The names that the source leaves to others.
            arrivals: Those of an output.
        """
        redactor = self._redactor_of(row.run_id)

        def connect() -> AbstractContextManager[sqlite3.Connection]:
            if in_thread and self.context is not None:
                return closing(self.context.connect())
            return nullcontext(self._connection)

        def newest_lines() -> list[tuple[int | None, Mapping[str, Any]]]:
            with connect() as connection:
                query = LineQuery("rank, data", is_newest_first=True, limit=_NEWEST_LINES)
                rows = rows_between(connection, row.source_id, START, END, query).fetchall()
            return [(rank, orjson.loads(data)) for rank, data in reversed(rows)]

        earlier: EarlierLines = EarlierVersions(row.source_id, connect)
        if row.format == ATTEMPT_OUTPUT:
            earlier = EarlierReading(row.source_id, connect)
        lines = LineSource(row.source_id, redactor, NullReader(newest_lines), refused, arrivals)
        source = ReadSource(lines, earlier, self._clock)
        if row.format == HISTORY:
            return HistoryReader(source, row.path)
        is_pattern = row.format == ATTEMPT_OUTPUT or has_wildcards(row.pattern)
        return FileReader(source, row.pattern, row.file_format(), is_pattern=is_pattern)

    def end(self, row: SourceRow, at_most: int | None = None, *, in_thread: bool = False) -> Callable[[], SourceState]:
        """Prepare the search for the end of a source, as `FileReader.end_state`; the result's call finds it.

        Args:
            at_most: As of `FileReader.end_state`.
            in_thread: It is called in another thread than this one.
        """
        reader = self.reader(row, in_thread=in_thread)
        state = self.position(row.source_id)[0]

        def work() -> SourceState:
            with closing(reader):
                return reader.end_state(state, at_most)

        return work

    def _insert(self, run_id: str, path: str, kind: str, reading: str | None) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading) VALUES (?, ?, ?, ?)",
            (run_id, path, kind, reading),
        )

    def _add_boundary(self, source_id: int, position: tuple[int, int], attempt: int) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_boundaries (source_id, generation, byte_offset, attempt) VALUES (?, ?, ?, ?)",
            (source_id, *position, attempt),
        )


class _Survey(NamedTuple):
    """A search for the ends of those files of a run that are read in another thread: ``job``
    returns the state at the end of each source by its ID."""

    begun_at: float
    paths: str
    job: Future[dict[int, SourceState]]


class SourceEnds:
    """The ends of a run's files before an attempt: what is behind them belongs to the attempt."""

    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._surveys: dict[str, _Survey] = {}

    def awaited(self, run_id: str) -> str | None:
        """Find the ends for a run's next attempt. Returns None once they are known; until then the
        path that is awaited. Call it outside of transactions, again and again."""
        survey = self._surveys.get(run_id)
        now = time.monotonic()
        if survey is None or (survey.job.done() and now - survey.begun_at > SURVEY_SECONDS):
            survey = self._surveys[run_id] = self._begin(run_id, now)
        if survey.job.done():
            return None
        return survey.paths

    def of(self, run_id: str) -> dict[int, SourceState]:
        """The state at the end of each of a run's files, by source. Call it once nothing is
        `awaited`. Raises OSError."""
        survey = self._surveys.pop(run_id, None)
        states: dict[int, SourceState] = {}
        if survey is not None:
            states = survey.job.result(timeout=0)
        for row in self._table.files_of(run_id):
            if row.source_id not in states:
                if self._table.needs_thread(row):
                    raise BlockingIOError(f"{row.path} has not answered yet")
                states[row.source_id] = self._table.end(row)()
        return states

    def at(self, run_id: str, offsets: Mapping[str, int]) -> dict[int, SourceState]:
        """The state of each of a run's files at an offset by path, by source. Raises OSError."""
        rows = self._table.files_of(run_id)
        return {row.source_id: self._table.end(row, offsets.get(row.path, 0))() for row in rows}

    def sizes(self, run_id: str, ends: Mapping[int, SourceState]) -> dict[str, int]:
        """The sizes (bytes) of a run's plain files that exist, by path, from what `of` returned."""
        rows = [row for row in self._table.files_of(run_id) if not has_wildcards(row.pattern)]
        ends_by_path = {row.path: ends[row.source_id] for row in rows}
        return {path: end.byte_offset for path, end in ends_by_path.items() if end.inode is not None}

    def forget(self, run_id: str) -> None:
        self._surveys.pop(run_id, None)

    def _begin(self, run_id: str, now: float) -> _Survey:
        rows = [row for row in self._table.files_of(run_id) if self._table.needs_thread(row)]
        if not rows or self._table.context is None:
            job: Future[dict[int, SourceState]] = Future()
            job.set_result({})
            return _Survey(now, "", job)
        ends = {row.source_id: self._table.end(row, in_thread=True) for row in rows}
        paths = [row.path for row in rows]
        job = self._table.context.start(
            f"looking at {' and '.join(paths)}", lambda: {source_id: end() for source_id, end in ends.items()}
        )
        return _Survey(now, " or ".join(paths), job)
