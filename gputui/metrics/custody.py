"""Whose file it is where the profiles of several runs that live at the same time read the same path or pattern.

A run reads a file that may be another's only on evidence: it is in the run's own folder; or only processes of this run
have it open for writing; or the run has read it before, and the pattern gives each run files of its own. Without
evidence the file is left alone: a value of another run would end this one. A file that another run was seen writing
during an attempt is never read for it, because it has lines of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gputui.metrics.walk import has_wildcards, is_match

FileIdentity = tuple[int, int]
"""Device and inode."""

WrittenBy = Callable[[Sequence[tuple[str, int]]], Sequence[AbstractSet[FileIdentity]]]
"""Runs with an attempt each → the files that each attempt's processes have open for writing."""


class Party(Struct, frozen=True):
    """A run that may write the files of a source. ``pattern`` is the path or glob of its files, ``attempt`` the newest
    attempt, ``read_inode`` the file that was read of it."""

    run_id: str
    attempt: int
    run_dir: str
    pattern: str
    read_inode: int | None = None

    def may_write(self, path: str, status: os.stat_result) -> bool:
        """Whether this file is one of its pattern."""
        if has_wildcards(self.pattern):
            return is_match(path, self.pattern)
        try:
            return path == self.pattern or os.path.samestat(Path(self.pattern).stat(), status)
        except OSError:
            return False

    def owns_folder_of(self, path: str) -> bool:
        return path.startswith(f"{self.run_dir}/")


@dataclass(slots=True)
class Custody:
    """Decides which files a run may read in one background read.

    Attributes:
        written_by: which files attempts have open for writing.
        began_at: when the run's attempt began, UTC unix seconds.
        foreign: the files that another run was seen writing during the attempt; found ones are added.
        doubtful: a file that was written since then, and that no run was seen writing.
    """

    own: Party
    rivals: tuple[Party, ...]
    written_by: WrittenBy
    began_at: float
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
        """Whether the same holds now, after the files were read: another run may have opened one meanwhile."""
        self._written = None
        return all(self._is_own(path, status) for path, status in self._admitted)

    def _is_own(self, path: str, status: os.stat_result) -> bool:
        rivals = [rival for rival in self.rivals if rival.may_write(path, status)]
        if not rivals or self.own.owns_folder_of(path):
            return True
        if any(rival.owns_folder_of(path) for rival in rivals):
            return False
        written, file = self._written_now(), (status.st_dev, status.st_ino)
        writes = file in written.get(self.own.run_id, ())
        is_written_by_rival = any(file in written.get(rival.run_id, ()) for rival in rivals)
        if is_written_by_rival:
            self.foreign.add(file)
        # Files of a pattern are made anew by each start; the file of a path is written by all.
        are_patterns = all(has_wildcards(party.pattern) for party in (self.own, *rivals))
        is_read_by_rival = are_patterns and any(rival.read_inode == status.st_ino for rival in rivals)
        was_read = are_patterns and self.own.read_inode == status.st_ino
        is_foreign = file in self.foreign or is_read_by_rival
        if (writes or was_read) and not is_foreign:
            return True
        is_of_rival = is_foreign and not (writes or was_read)
        if not is_of_rival and status.st_mtime >= self.began_at:
            self.doubtful = path
        return False

    def _written_now(self) -> dict[str, AbstractSet[FileIdentity]]:
        if self._written is None:
            parties = {party.run_id: party.attempt for party in (self.own, *self.rivals)}
            self._written = dict(zip(parties, self.written_by(list(parties.items())), strict=True))
        return self._written
