"""Which runs that live at the same time could write the same metrics files."""

from __future__ import annotations

import glob

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.background_reads import ReadContext
from gputui.metrics.batch import SourceState
from gputui.metrics.custody import Custody, Party
from gputui.metrics.open_sources import OpenSource, OpenSources
from gputui.metrics.source_reader import Boundary
from gputui.metrics.source_table import ATTEMPT_OUTPUT, PRINTED, SourceRow, SourceTable
from gputui.metrics.walk import may_overlap


class Contest(Struct, frozen=True):
    """The runs that could write the files of a source, the others by source ID, and when the attempt began that reads
    it (UTC unix seconds)."""

    own: Party
    rivals: tuple[tuple[int, Party], ...]
    began_at: float

    @property
    def rival_attempts(self) -> list[tuple[str, int]]:
        return [(party.run_id, party.attempt) for _, party in self.rivals]


class Contests:
    """The contests of all sources, computed once after attempts have begun."""

    def __init__(self, table: SourceTable, sources: OpenSources, read_context: ReadContext | None) -> None:
        self._table = table
        self._sources = sources
        self._read_context = read_context
        self._by_source: dict[int, Contest] | None = None

    def note_begin(self) -> None:
        """Compute them again: an attempt has begun."""
        self._by_source = None

    def of(self, source: OpenSource) -> Contest | None:
        """The other runs whose attempts lived during the newest one of this run, and whose sources may have the same
        files; None if there are none."""
        if self._read_context is None or source.pattern is None:
            return None
        if self._by_source is None:
            self._by_source = self._find(self._read_context)
        return self._by_source.get(source.source_id)

    def custody(self, source: OpenSource) -> Custody | None:
        """What decides which files may be read for a source; None for all."""
        contest = self.of(source)
        if contest is None or self._read_context is None:
            return None
        own = replace(contest.own, read_inode=_read_inode(source.state, source.boundaries))
        rivals = []
        for source_id, party in contest.rivals:
            rival = self._sources.get(source_id)
            is_loaded = rival is not None and rival.is_loaded
            position = (rival.state, rival.boundaries) if rival and is_loaded else self._table.position(source_id)
            rivals.append(replace(party, read_inode=_read_inode(*position)))
        return Custody(own, tuple(rivals), self._read_context.written_by, contest.began_at, source.foreign)

    def _find(self, read_context: ReadContext) -> dict[int, Contest]:
        rows = self._table.connection.execute(
            "WITH lived AS (SELECT run_id, max(number) AS number, max(coalesce(ended_at, 9e99)) AS ended_at "
            "FROM attempts WHERE ended_at IS NULL "
            "OR ended_at > (SELECT min(created_at) FROM attempts WHERE ended_at IS NULL) GROUP BY run_id) "
            "SELECT s.source_id, s.run_id, s.path, s.format, s.reading, a.number, a.created_at, lived.ended_at "
            "FROM lived JOIN attempts AS a USING (run_id, number) JOIN metric_sources AS s USING (run_id) "
            "WHERE s.format NOT IN (?, ?)",
            (PRINTED, ATTEMPT_OUTPUT),
        ).fetchall()
        parties = []
        for *columns, number, created_at, ended_at in rows:
            row = SourceRow(*columns)
            run_dir = str(read_context.run_dir(row.run_id))
            if not row.pattern.startswith((f"{run_dir}/", f"{glob.escape(run_dir)}/")):
                party = Party(row.run_id, number, run_dir, row.pattern)
                parties.append((row.source_id, party, created_at, ended_at))
        contests = {}
        for source_id, own, created_at, _ in parties:
            rivals = tuple(
                (other_id, other)
                for other_id, other, _, ended_at in parties
                if other.run_id != own.run_id and ended_at > created_at and may_overlap(own.pattern, other.pattern)
            )
            if rivals:
                contests[source_id] = Contest(own, rivals, created_at)
        return contests


def _read_inode(state: SourceState, boundaries: list[Boundary]) -> int | None:
    """The file that a source is at, if any of it was read."""
    return state.inode if boundaries and state.position > boundaries[0][:2] else None
