"""The ends of a run's metrics files before an attempt: what is behind them belongs to the attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from gputui.metrics.background_reads import PendingWork
from gputui.metrics.background_sources import BackgroundSources
from gputui.metrics.batch import SourceState
from gputui.metrics.open_sources import OpenSources
from gputui.metrics.source_table import SourceRow, SourceTable
from gputui.metrics.walk import has_wildcards

# How long the ends that a search found before an attempt are those at its begin.
SURVEY_SECONDS = 5.0


@dataclass(slots=True)
class _Survey:
    """A search for the ends of those files of a run that are read in the background. ``job`` returns the state at the
    end of each source by its ID; it is None if there are no such files."""

    begun_at: float
    paths: list[str]
    job: PendingWork | None
    is_reported: bool = False

    @property
    def is_over(self) -> bool:
        return self.job is None or self.job.is_over


class SourceEnds:
    """Finds the ends of files, in the caller's thread or, with ``background``, in others where needed."""

    def __init__(self, table: SourceTable, sources: OpenSources, background: BackgroundSources | None) -> None:
        self._table = table
        self._sources = sources
        self._background = background
        self._surveys: dict[str, _Survey] = {}

    def survey(self, run_id: str) -> str | None:
        """See `MetricsIngest.survey`."""
        survey = self._surveys.get(run_id)
        if survey is None or (survey.is_over and time.monotonic() - survey.begun_at > SURVEY_SECONDS):
            survey = self._surveys[run_id] = self._begin_survey(run_id)
        return None if survey.is_over else " or ".join(survey.paths)

    def has_ended_survey(self) -> bool:
        """Whether a survey has ended since the last call."""
        ended = [
            survey
            for survey in self._surveys.values()
            if not survey.is_reported and survey.job is not None and survey.job.is_over
        ]
        for survey in ended:
            survey.is_reported = True
        return bool(ended)

    def ends(self, run_id: str) -> dict[int, SourceState]:
        """See `MetricsIngest.ends`."""
        survey = self._surveys.pop(run_id, None)
        states: dict[int, SourceState] = {}
        if survey is not None and survey.job is not None:
            states.update(survey.job.result())
        for row in self._table.files_of(run_id):
            if row.source_id in states:
                continue
            if self._must_read_in_background(row):
                raise BlockingIOError(f"{row.path} has not answered yet")
            states[row.source_id] = self._end(row)
        return states

    def ends_at(self, run_id: str, offsets: Mapping[str, int]) -> dict[int, SourceState]:
        """The state of each of a run's files at an offset, by source. See `MetricsIngest.readmit_attempt`."""
        return {row.source_id: self._end(row, offsets.get(row.path, 0)) for row in self._table.files_of(run_id)}

    def sizes(self, run_id: str, ends: Mapping[int, SourceState]) -> dict[str, int]:
        """See `MetricsIngest.sizes`."""
        return {
            row.path: ends[row.source_id].byte_offset
            for row in self._table.files_of(run_id)
            if not has_wildcards(row.pattern) and ends[row.source_id].inode is not None
        }

    def forget(self, run_id: str) -> None:
        self._surveys.pop(run_id, None)

    def _must_read_in_background(self, row: SourceRow) -> bool:
        return self._background is not None and self._background.must_read(row.run_id, row.pattern)

    def _begin_survey(self, run_id: str) -> _Survey:
        rows = [row for row in self._table.files_of(run_id) if self._must_read_in_background(row)]
        now, paths = time.monotonic(), [row.path for row in rows]
        if not rows or self._background is None:
            return _Survey(now, paths, None)
        readers = [
            (row.source_id, self._sources.new_reader(row, in_background=True), self._table.position(row.source_id)[0])
            for row in rows
        ]

        def work() -> dict[int, SourceState]:
            states = {}
            for source_id, reader, state in readers:
                with closing(reader):
                    states[source_id] = reader.end_state(state)
            return states

        job = self._background.read_context.start(f"looking at {' and '.join(paths)}", work)
        return _Survey(now, paths, job)

    def _end(self, row: SourceRow, at_most: int | None = None) -> SourceState:
        """The state at the end of a source, read in this thread. Raises OSError."""
        state, _ = self._table.position(row.source_id)
        source = self._sources.get(row.source_id)
        if source is not None and not source.in_background:
            return source.reader.end_state(state, at_most)
        with closing(self._sources.new_reader(row, in_background=False)) as reader:
            return reader.end_state(state, at_most)
