"""Whose file it is where several runs that live at the same time could write the same path.

A run reads a file that may be another's only on evidence: it is in the run's own folder; or only
processes of this run have it open for writing; or the run has read it before, and the pattern gives
each run files of its own. Without evidence the file is left alone: a value of another run would end
this one. A file that another run was seen writing during an attempt is never read for it, because
it has lines of both.
"""

from __future__ import annotations

import glob
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gputui.metrics.walk import has_wildcards, is_match, may_overlap

FileIdentity = tuple[int, int]
"""Device and inode."""

WrittenBy = Callable[[Sequence[tuple[str, int]]], Sequence[AbstractSet[FileIdentity]]]
"""Runs with an attempt each → the files that each attempt's processes have open for writing."""


class Party(Struct, frozen=True):
    """A run that may write the files of a source. ``pattern`` is the path or glob of its files,
    ``attempt`` the newest attempt, from ``began_at`` to ``ended_at`` (UTC unix seconds)."""

    source_id: int
    run_id: str
    attempt: int
    run_dir: str
    pattern: str
    began_at: float
    ended_at: float

    def may_write(self, path: str, status: os.stat_result) -> bool:
        """Whether this file is one of its pattern."""
        if has_wildcards(self.pattern):
            return is_match(path, self.pattern)
        try:
            return path == self.pattern or os.path.samestat(Path(self.pattern).stat(), status)
        except OSError:
            return False


# The newest attempts of runs that live, or ended while another one lived.
_PARTIES = """
WITH lived AS (
    SELECT run_id, max(number) AS number, max(coalesce(ended_at, 9e99)) AS ended_at FROM attempts
    WHERE ended_at IS NULL OR ended_at > (SELECT min(created_at) FROM attempts WHERE ended_at IS NULL)
    GROUP BY run_id
)
SELECT s.source_id, s.run_id, s.path, s.format, a.number, a.created_at, lived.ended_at
FROM lived JOIN attempts AS a USING (run_id, number) JOIN metric_sources AS s USING (run_id)
WHERE s.format NOT IN ('stdout', 'output')
"""


def contests(
    connection: sqlite3.Connection, run_dir: Callable[[str], Path], names: Mapping[str, str]
) -> dict[int, tuple[Party, ...]]:
    """The parties that could write the files of a source, by its ID: its run, and others that lived
    during the run's newest attempt. Without others, it has no entry. ``names`` has the names of a
    tracker's files by kind of source. Raises sqlite3.Error."""
    parties = []
    for source_id, run_id, path, kind, *attempt in connection.execute(_PARTIES):
        folder = str(run_dir(run_id))
        pattern = f"{path}/{names[kind]}" if kind in names else path
        if not pattern.startswith((f"{folder}/", f"{glob.escape(folder)}/")):
            number, began_at, ended_at = attempt
            parties.append(Party(source_id, run_id, number, folder, pattern, began_at, ended_at))
    found = {}
    for own in parties:
        others = (one for one in parties if one.run_id != own.run_id and one.ended_at > own.began_at)
        rivals = [one for one in others if may_overlap(own.pattern, one.pattern)]
        if rivals:
            found[own.source_id] = (own, *rivals)
    return found


@dataclass(slots=True)
class Custody:
    """Decides which files the run of the first of ``parties`` may read in one background read.

    Attributes:
        inodes: the file that each party's source is at, by source ID, if any of it was read.
        foreign: the files that another run was seen writing during the attempt; found ones are
            added.
        doubtful: a file that was written since the attempt began, and that no run was seen writing.
    """

    parties: Sequence[Party]
    inodes: Mapping[int, int | None]
    written_by: WrittenBy
    foreign: set[FileIdentity]
    doubtful: str | None = None
    _written: dict[str, AbstractSet[FileIdentity]] | None = None
    _admitted: list[tuple[str, os.stat_result]] = field(default_factory=list)

    def admits(self, path: str, status: os.stat_result) -> bool:
        """Whether the run may read this file."""
        is_admitted = self._is_own(path, status)
        if is_admitted:
            self._admitted.append((path, status))
        return is_admitted

    def still_admits(self) -> bool:
        """Whether the same holds now, after the files were read: another run may have opened one
        meanwhile."""
        self._written = None
        return all(self._is_own(path, status) for path, status in self._admitted)

    def _is_own(self, path: str, status: os.stat_result) -> bool:
        own, *others = self.parties
        rivals = [one for one in others if one.may_write(path, status)]
        if not rivals or path.startswith(f"{own.run_dir}/"):
            return True
        if any(path.startswith(f"{rival.run_dir}/") for rival in rivals):
            return False
        if self._written is None:
            attempts = {party.run_id: party.attempt for party in self.parties}
            self._written = dict(zip(attempts, self.written_by(list(attempts.items())), strict=True))
        file = (status.st_dev, status.st_ino)
        writers = {run_id for run_id, written in self._written.items() if file in written}
        if not writers.isdisjoint(rival.run_id for rival in rivals):
            self.foreign.add(file)
        # Files of a pattern are made anew by each start; the file of a path is written by all.
        are_patterns = all(has_wildcards(party.pattern) for party in (own, *rivals))
        readers = {
            party.run_id
            for party in (own, *rivals)
            if are_patterns and self.inodes.get(party.source_id) == status.st_ino
        }
        is_known = own.run_id in writers | readers
        is_foreign = file in self.foreign or bool(readers - {own.run_id})
        if is_known and not is_foreign:
            return True
        if (is_known or not is_foreign) and status.st_mtime >= own.began_at:
            self.doubtful = path
        return False
