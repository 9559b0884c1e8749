"""The file behind a source: found by path or pattern, kept open while it is read, recognised after it was rewritten."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
import time
from pathlib import Path

# The fingerprint covers the file's first bytes and those just before the offset: content that was rewritten and has
# grown past the old offset differs in the one or, where it begins the same, almost certainly in the other.
HEAD_BYTES = 256
TAIL_BYTES = 64

# What looking for files may take of the time, and how long it rests at most.
LOOKING_SHARE = 0.01
LOOKING_SECONDS = 10.0

# How logrotate and Python's logging name what they put aside; copies made by people are named otherwise.
_ROTATED = re.compile(r"[.-]\d+")


def marks(descriptor: int, offset: int) -> tuple[bytes, bytes]:
    """The bytes that the fingerprint of everything before ``offset`` is made of."""
    head, tail = min(HEAD_BYTES, offset), min(TAIL_BYTES, offset)
    return os.pread(descriptor, head, 0), os.pread(descriptor, tail, offset - tail)


def marks_after(head: bytes, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The same once ``data``, which lay behind those bytes, has been read too."""
    return (head + data[: HEAD_BYTES - len(head)]), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]


def fingerprint(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(b"%d " % len(head) + head + tail, digest_size=8).hexdigest()


def is_unchanged(descriptor: int, offset: int, expected: str | None) -> bool:
    """Whether what lies before ``offset`` is still what was read."""
    return expected is None or fingerprint(*marks(descriptor, offset)) == expected


class Matches:
    """The files that match a pattern. Looking for them takes a small share of the time: an output folder may hold
    thousands of files."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._found: list[str] = []
        self._look_at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._look_at

    def paths(self, *, at_once: bool = False) -> list[str]:
        """As they were found a little ago, or now where ``at_once``."""
        if at_once or self.is_due():
            began = time.thread_time()
            self._found = glob.glob(self._pattern, recursive=True)  # noqa: PTH207 - it is absolute
            cost = time.thread_time() - began
            self._look_at = time.monotonic() + min(cost / LOOKING_SHARE, LOOKING_SECONDS)
        return self._found


class FollowedFile:
    """Descriptors of the file at ``path`` (or the first that matches it, where ``is_pattern``), by inode.

    A descriptor outlives the name: what was renamed or deleted can be read to its end. A ``path`` with ``*`` or ``?``
    in it means the newest file that it matches, as scripts begin one with each start; to one that a newer has
    followed nothing leads back, even where it still grows.
    """

    def __init__(self, path: str, *, is_pattern: bool = False) -> None:
        self._pattern = path if is_pattern else None
        self._newest = Matches(path) if not is_pattern and ("*" in path or "?" in path) else None
        self._newest_inode: int | None = None
        self._left: set[int] = set()
        self.path = path
        self._descriptors: dict[int, int] = {}
        self._sought: int | None = None

    def close(self) -> None:
        self.keep_only(None)

    def keep_only(self, inode: int | None) -> None:
        """Let go of every other file."""
        if not (len(self._descriptors) == 1 and inode in self._descriptors):
            for other in [number for number in self._descriptors if number != inode]:
                os.close(self._descriptors.pop(other))

    def status(self, *, at_once: bool = False) -> os.stat_result | None:
        """Of the file at the path now, or None while there is none (a pipe or a directory is none). Of several the
        newest is looked for now and then, or ``at_once``."""
        if self._newest is not None:
            if at_once or self._newest.is_due():
                return self._newest_status(self._newest.paths(at_once=at_once))
            if self._newest_inode is None:
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
        return status if stat.S_ISREG(status.st_mode) else None

    def _newest_status(self, paths: list[str]) -> os.stat_result | None:
        found: list[tuple[int, str, os.stat_result]] = []
        for path in paths:
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                if stat.S_ISREG(status.st_mode) and status.st_ino not in self._left:
                    found.append((status.st_mtime_ns, path, status))
        if not found:
            return None
        _, self.path, newest = max(found, key=lambda each: each[:2])
        if self._newest_inode not in (None, newest.st_ino):
            self._left.add(self._newest_inode)
        self._newest_inode = newest.st_ino
        return newest

    def open_current(self, inode: int) -> int | None:
        """The file at the path, where it is (still) the one with this inode, or one that is open."""
        held = self._descriptors.get(inode)
        return self._open(self.path, inode) if held is None else held

    def open_former(self, inode: int, offset: int, expected: str | None) -> int | None:
        """A file that is no longer at the path: still open here, or beside it under another name, where a rotation
        put it between two reads."""
        if inode in self._descriptors:
            return self._descriptors[inode]
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
        """Open what was begun after the file with this inode was put aside: the oldest of those put aside since, or
        the one at the path, whose inode is ``current``. Answers its inode. It is opened at once, so that it is not
        lost should it be renamed before it is read."""
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
        if status.st_ino != inode or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            return None
        self._descriptors[inode] = descriptor
        return descriptor
