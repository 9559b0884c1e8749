"""Whose file it is where several runs that live at the same time could write the same path.

A run reads a file that may be another's only on evidence: it is in the run's own folder; or of these runs only this one
was seen having it open for writing; or the run has read it before, and the pattern gives each run files of its own.
Without evidence the file is left alone: a value of another run would end this one.
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

from gputui.metrics.walk import has_wildcards, may_overlap

FileIdentity = tuple[int, int]
"""Device and inode."""

WrittenBy = Callable[[Sequence[tuple[str, int]]], Sequence[AbstractSet[FileIdentity]]]
"""Runs with an attempt each → the files that each attempt's processes have open for writing."""

Writers = dict[FileIdentity, set[str]]
"""The runs that were seen having a file open for writing."""


class Contest(Struct, frozen=True):
    """The newest attempts of the runs that could write the files of a source, its own first. ``began_at`` (UTC unix
    seconds) is the begin of its own; ``are_patterns``: every path has a wildcard."""

    attempts: tuple[tuple[str, int], ...]
    began_at: float
    are_patterns: bool


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
) -> dict[int, Contest]:
    """The sources whose files other runs could write that lived during the newest attempt. ``names`` has the names of a
    tracker's files by kind of source. Raises sqlite3.Error."""
    parties = []
    for source_id, run_id, path, kind, *attempt in connection.execute(_PARTIES):
        folder = str(run_dir(run_id))
        pattern = f"{path}/{names[kind]}" if kind in names else path
        if not pattern.startswith((f"{folder}/", f"{glob.escape(folder)}/")):
            parties.append((source_id, run_id, pattern, *attempt))
    found = {}
    for source_id, run_id, pattern, number, began_at, _ in parties:
        rivals = {
            (other_id, other_number): other
            for _, other_id, other, other_number, _, ended_at in parties
            if other_id != run_id and ended_at > began_at and may_overlap(pattern, other)
        }
        if rivals:
            are_patterns = all(map(has_wildcards, (pattern, *rivals.values())))
            found[source_id] = Contest(((run_id, number), *rivals), began_at, are_patterns)
    return found


@dataclass(slots=True)
class Custody:
    """Decides which files a run may read in one background read.

    Attributes:
        run_dir: the run's folder.
        inode: the file that the run's source is at, if any of it was read.
        writers: what was seen so far; completed by each read.
        doubtful: a file that was written since the attempt began, and that is not known to be another run's.
    """

    contest: Contest
    run_dir: Path
    inode: int | None
    written_by: WrittenBy
    writers: Writers
    doubtful: str | None = None
    _has_looked: bool = False
    _admitted: list[tuple[str, os.stat_result]] = field(default_factory=list)

    def admits(self, path: str, status: os.stat_result) -> bool:
        """Whether the run may read this file."""
        attempts = self.contest.attempts
        if not self._has_looked:
            self._has_looked = True
            for (run_id, _), files in zip(attempts, self.written_by(attempts), strict=True):
                for file in files:
                    self.writers.setdefault(file, set()).add(run_id)
        own = attempts[0][0]
        seen = self.writers.get((status.st_dev, status.st_ino), set()) & {run_id for run_id, _ in attempts}
        is_kept = self.contest.are_patterns and status.st_ino == self.inode and not seen
        if seen == {own} or is_kept or path.startswith(f"{self.run_dir}/"):
            self._admitted.append((path, status))
            return True
        if (not seen or own in seen) and status.st_mtime >= self.contest.began_at:
            self.doubtful = path
        return False

    def still_admits(self) -> bool:
        """Whether the same holds now, after the files were read: another run may have opened one meanwhile."""
        self._has_looked = False
        return all(self.admits(path, status) for path, status in list(self._admitted))
