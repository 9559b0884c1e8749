"""The file behind a source: found by path or pattern, kept open, and recognised after a rewrite."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gputui.metrics.custody import Custody
from gputui.metrics.walk import MOST_ENTRIES, find, has_wildcards

# The fingerprint covers the file's first bytes and those just before the offset. Rewritten content that has grown past
# the old offset almost certainly differs in one of them.
HEAD_BYTES = 256
TAIL_BYTES = 64

# The share of the time that searches may take, and the longest pause between two.
SEARCH_SHARE = 0.01
SEARCH_SECONDS = 10.0

# The suffix of files rotated by logrotate and Python's logging; copies that people make have other names.
_ROTATED = re.compile(r"[.-]\d+")


def marks(descriptor: int, offset: int) -> tuple[bytes, bytes]:
    """The bytes before ``offset`` that make up its fingerprint."""
    head, tail = min(HEAD_BYTES, offset), min(TAIL_BYTES, offset)
    return os.pread(descriptor, head, 0), os.pread(descriptor, tail, offset - tail)


def marks_after(head: bytes, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The bytes of the fingerprint after ``data``, which follows, has been read."""
    return (head + data[: HEAD_BYTES - len(head)]), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]


def fingerprint(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(b"%d " % len(head) + head + tail, digest_size=8).hexdigest()


def is_unchanged(descriptor: int, offset: int, expected: str | None) -> bool:
    """Whether the bytes before ``offset`` still have this fingerprint."""
    return expected is None or fingerprint(*marks(descriptor, offset)) == expected


Admits = Callable[[str, os.stat_result], bool]
"""(path, status) → whether a run may read this file."""


def admit_all(_path: str, _status: os.stat_result) -> bool:
    return True


class Matches:
    """The files that match a pattern. Searches take a small share of the time, because an output folder may hold
    thousands of files. ``is_cut``: the last search ended early, since there were too many files and folders."""

    def __init__(self, pattern: str) -> None:
        self.is_cut = False
        self._pattern = pattern
        self._found: list[str] = []
        self._search_at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._search_at

    def paths(self, *, at_once: bool = False) -> list[str]:
        """The files at the last search, or now if ``at_once``."""
        if at_once or self.is_due():
            began = time.thread_time()
            self._found, self.is_cut = find(self._pattern, MOST_ENTRIES)
            cost = time.thread_time() - began
            self._search_at = time.monotonic() + min(cost / SEARCH_SHARE, SEARCH_SECONDS)
        return self._found


class FollowedFile:
    """Descriptors, by inode, of the file at ``path`` (or of the first file that matches it if ``is_pattern``).

    A descriptor outlives the name, so a renamed or deleted file can be read to its end. A ``path`` with ``*`` or ``?``
    means the newest match, since a script creates one with each start. Once a newer file has followed another, the
    older is never read again, even if it still grows. Files that ``admits`` refuses count as missing.

    ``device`` is that of the file that was seen last, None before.
    """

    def __init__(self, path: str, *, is_pattern: bool = False, admits: Admits = admit_all) -> None:
        self._pattern = path if is_pattern else None
        self._newest = Matches(path) if not is_pattern and has_wildcards(path) else None
        self._followed: tuple[int, str] | None = None
        # Inodes and paths: the inode of a deleted file is given to a new one.
        self._left: set[tuple[int, str]] = set()
        self._admits = admits
        self.path = path
        self.device: int | None = None
        self._descriptors: dict[int, int] = {}
        self._sought: int | None = None

    def close(self) -> None:
        self.keep_only(None)

    @property
    def is_cut(self) -> bool:
        """Whether the last search ended early."""
        return self._newest is not None and self._newest.is_cut

    def keep_only(self, inode: int | None) -> None:
        """Close every other file."""
        if not (len(self._descriptors) == 1 and inode in self._descriptors):
            for other in [number for number in self._descriptors if number != inode]:
                os.close(self._descriptors.pop(other))

    def status(self, *, at_once: bool = False) -> os.stat_result | None:
        """The status of the file at the path; None without a regular file. The newest of several files is searched for
        occasionally, or now if ``at_once``."""
        if self._newest is not None:
            if at_once or self._newest.is_due():
                return self._newest_status(self._newest.paths(at_once=at_once))
            if self._followed is None:
                return None
        if self._pattern is not None:
            found = min(glob.glob(self._pattern), default=None)  # noqa: PTH207 - it is absolute
            if found is None:
                return None
            self.path, self._pattern = found, None
        try:
            status = Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        self.device = status.st_dev
        return status if stat.S_ISREG(status.st_mode) and self._admits(self.path, status) else None

    def _newest_status(self, paths: list[str]) -> os.stat_result | None:
        candidates: list[tuple[int, str, os.stat_result]] = []
        for path in paths:
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                if stat.S_ISREG(status.st_mode):
                    candidates.append((status.st_mtime_ns, path, status))
        self._left &= {(status.st_ino, path) for _, path, status in candidates}
        for _, path, status in sorted(candidates, key=lambda candidate: candidate[:2], reverse=True):
            file = (status.st_ino, path)
            if file not in self._left and self._admits(path, status):
                if self._followed is not None and self._followed[0] != status.st_ino:
                    self._left.add(self._followed)
                self._followed = file
                self.path, self.device = path, status.st_dev
                return status
        return None

    def open_current(self, inode: int) -> int | None:
        """Open the file at the path if it has this inode; an open file stays open."""
        descriptor = self._descriptors.get(inode)
        return self._open(self.path, inode) if descriptor is None else descriptor

    def open_former(self, inode: int, offset: int, expected: str | None) -> int | None:
        """Open a file that is no longer at the path: it is still open, or beside it under the name that a rotation gave
        it."""
        descriptor = self._descriptors.get(inode)
        if descriptor is not None:
            return descriptor if self._admits(self.path, os.fstat(descriptor)) else None
        if self._sought == inode:
            return None
        self._sought = inode
        try:
            if self._newest is not None:
                candidates = [path for path in self._newest.paths(at_once=True) if Path(path).stat().st_ino == inode]
            else:
                candidates = [entry.path for entry in os.scandir(Path(self.path).parent) if entry.inode() == inode]
        except OSError:
            return None
        for path in candidates:
            descriptor = self._open(path, inode)
            if descriptor is not None:
                if is_unchanged(descriptor, offset, expected):
                    return descriptor
                os.close(self._descriptors.pop(inode))
        return None

    def open_next(self, inode: int, current: int) -> int:
        """Open the file that followed the one with this inode: the oldest one rotated since, else the one at the path,
        whose inode is ``current``. Returns its inode. It is opened at once, so that a rename before the next read does
        not lose it."""
        ended = os.fstat(self._descriptors[inode]).st_mtime_ns
        path = Path(self.path)
        since = []
        for entry in os.scandir(path.parent):
            if _ROTATED.fullmatch(entry.name.removeprefix(path.name)) and entry.inode() not in (inode, current):
                with contextlib.suppress(FileNotFoundError):
                    since.append((entry.stat().st_mtime_ns, entry.inode(), entry.path))
        for modified, other, name in sorted(since):
            if modified > ended and self._open(name, other) is not None:
                return other
        self.open_current(current)
        return current

    def _open(self, path: str, inode: int) -> int | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        status = os.fstat(descriptor)
        if status.st_ino != inode or not stat.S_ISREG(status.st_mode) or not self._admits(path, status):
            os.close(descriptor)
            return None
        self._descriptors[inode] = descriptor
        return descriptor


class FileFollower:
    """What the readers of one `FollowedFile` share: its part of `SourceReader`."""

    def __init__(self, path: str, *, is_pattern: bool = False) -> None:
        self.is_busy = False
        self.custody: Custody | None = None
        self._file = FollowedFile(path, is_pattern=is_pattern, admits=self._admits)

    def _admits(self, path: str, status: os.stat_result) -> bool:
        return self.custody is None or self.custody.admits(path, status)

    @property
    def device(self) -> int | None:
        """As SourceReader.device."""
        return self._file.device

    @property
    def is_cut(self) -> bool:
        """As SourceReader.is_cut."""
        return self._file.is_cut

    def close(self) -> None:
        """Close open files; reading may continue afterwards."""
        self._file.close()
