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
from typing import Protocol

from gputui.metrics.walk import MOST_ENTRIES, find, has_wildcards

# The fingerprint covers the file's first bytes and those just before the offset. Rewritten content
# that has grown past the old offset almost certainly differs in one of them.
HEAD_BYTES = 256
TAIL_BYTES = 64

# The share of the time that searches may take, and the longest pause between two.
SEARCH_SHARE = 0.01
SEARCH_SECONDS = 10.0

# The suffix of files rotated by logrotate and Python's logging; copies that people make have other
# names.
_ROTATED = re.compile(r"[.-]\d+")


def ends(descriptor: int, offset: int) -> tuple[bytes, bytes]:
    """The bytes before ``offset`` that make up its fingerprint."""
    head, tail = min(HEAD_BYTES, offset), min(TAIL_BYTES, offset)
    return os.pread(descriptor, head, 0), os.pread(descriptor, tail, offset - tail)


def ends_after(head: bytes, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The bytes of the fingerprint after ``data``, which follows, has been read."""
    return (head + data[: HEAD_BYTES - len(head)]), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]


def fingerprint(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(b"%d " % len(head) + head + tail, digest_size=8).hexdigest()


def is_unchanged(descriptor: int, offset: int, expected: str | None) -> bool:
    """Whether the bytes before ``offset`` still have this fingerprint."""
    return expected is None or fingerprint(*ends(descriptor, offset)) == expected


class FileGate(Protocol):
    """Decides which files a run may read."""

    def admits(self, path: str, status: os.stat_result) -> bool: ...


class Matches:
    """The files that match a pattern. Searches take a small share of the time, because an output
    folder may hold thousands of files. ``is_cut``: the last search ended early, since there were
    too many files and folders."""

    def __init__(self, pattern: str) -> None:
        self.is_cut = False
        self._pattern = pattern
        self._found: list[tuple[str, os.stat_result]] = []
        self._search_at = 0.0

    def newest(self, *, at_once: bool = False) -> list[tuple[str, os.stat_result]]:
        """The regular files at the last search, or now if one is due or ``at_once``, the one that
        was written last first."""
        if at_once or time.monotonic() >= self._search_at:
            began = time.thread_time()
            paths, self.is_cut = find(self._pattern, MOST_ENTRIES)
            self._found = []
            for path in paths:
                with contextlib.suppress(OSError):
                    status = Path(path).stat()
                    if stat.S_ISREG(status.st_mode):
                        self._found.append((path, status))
            self._found.sort(key=lambda found: (found[1].st_mtime_ns, found[0]), reverse=True)
            cost = time.thread_time() - began
            self._search_at = time.monotonic() + min(cost / SEARCH_SHARE, SEARCH_SECONDS)
        return self._found


class FollowedFile:
    """Descriptors, by inode, of the file at ``path``, or of the first match if ``is_pattern``.

    A descriptor outlives the name, so a renamed or deleted file can be read to its end. A ``path``
    with ``*`` or ``?`` means the newest match, since a script creates one with each start. Once a
    newer file has followed another, the older is never read again, even if it still grows. Files
    that ``admits`` refuses count as missing.
    """

    def __init__(self, path: str, admits: Callable[[str, os.stat_result], bool], *, is_pattern: bool = False) -> None:
        self.path = path
        self._admits = admits
        self.matches = Matches(path) if not is_pattern and has_wildcards(path) else None
        self._pattern = path if is_pattern else None
        self._followed: tuple[int, str] | None = None
        # Inodes and paths: the inode of a deleted file is given to a new one.
        self._left: set[tuple[int, str]] = set()
        self._descriptors: dict[int, int] = {}
        self._sought: int | None = None

    def close(self) -> None:
        self.keep_only(None)

    __del__ = close  # by the thread that is the last to use it

    def keep_only(self, inode: int | None) -> None:
        """Close every other file."""
        for other in [number for number in self._descriptors if number != inode]:
            os.close(self._descriptors.pop(other))

    def status(self, *, at_once: bool = False) -> os.stat_result | None:
        """The status of the file at the path; None without a regular file. The newest of several
        files is searched for occasionally, or now if ``at_once``."""
        if self.matches is not None:
            found = self._newest(self.matches.newest(at_once=at_once))
            if found is None:
                return None
            self.path = found
        elif self._pattern is not None:
            matching = min(glob.glob(self._pattern), default=None)  # noqa: PTH207 - it is absolute
            if matching is None:
                return None
            self.path, self._pattern = matching, None
        try:
            status = Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status if stat.S_ISREG(status.st_mode) and self._admits(self.path, status) else None

    def _newest(self, found: list[tuple[str, os.stat_result]]) -> str | None:
        self._left &= {(status.st_ino, path) for path, status in found}
        for path, status in found:
            file = (status.st_ino, path)
            if file not in self._left and self._admits(path, status):
                if self._followed is not None and self._followed[0] != status.st_ino:
                    self._left.add(self._followed)
                self._followed = file
                return path
        return None

    def open_current(self, inode: int) -> int | None:
        """Open the file at the path if it has this inode; an open file stays open."""
        descriptor = self._descriptors.get(inode)
        return self._open(self.path, inode) if descriptor is None else descriptor

    def open_former(self, inode: int, offset: int, expected: str | None) -> int | None:
        """Open a file that is no longer at the path: it is still open, or beside it under the name
        that a rotation gave it."""
        descriptor = self._descriptors.get(inode)
        if descriptor is not None:
            return descriptor if self._admits(self.path, os.fstat(descriptor)) else None
        if self._sought == inode:
            return None
        self._sought = inode
        try:
            if self.matches is not None:
                found = self.matches.newest(at_once=True)
                candidates = [path for path, status in found if status.st_ino == inode]
            else:
                beside = os.scandir(Path(self.path).parent)
                candidates = [entry.path for entry in beside if entry.inode() == inode]
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
        """Open the file that followed the one with this inode: the oldest one rotated since, else
        the one at the path, whose inode is ``current``. Returns its inode. It is opened at once, so
        that a rename before the next read does not lose it."""
        ended = os.fstat(self._descriptors[inode]).st_mtime_ns
        path = Path(self.path)
        since = []
        for entry in os.scandir(path.parent):
            is_rotated = _ROTATED.fullmatch(entry.name.removeprefix(path.name))
            if is_rotated and entry.inode() not in (inode, current):
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
        is_wanted = status.st_ino == inode and stat.S_ISREG(status.st_mode)
        if not is_wanted or not self._admits(path, status):
            os.close(descriptor)
            return None
        self._descriptors[inode] = descriptor
        return descriptor


Clock = Callable[[], float]
"""UTC unix seconds."""
