"""The file behind a source: found by path or pattern, kept open while it is read, recognised after it was rewritten."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
from pathlib import Path

# The fingerprint covers the file's first bytes and those just before the offset: content that was rewritten and has
# grown past the old offset differs in the one or, where it begins the same, almost certainly in the other.
HEAD_BYTES = 256
TAIL_BYTES = 64

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


class FollowedFile:
    """Descriptors of the file at ``path`` (or the first that matches it, where ``is_pattern``), by inode.

    A descriptor outlives the name: what was renamed or deleted can be read to its end.
    """

    def __init__(self, path: str, *, is_pattern: bool = False) -> None:
        self._pattern = path if is_pattern else None
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

    def status(self) -> os.stat_result | None:
        """Of the file at the path now, or None while there is none (a pipe or a directory is none)."""
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

    def open_current(self, inode: int) -> int | None:
        """The file at the path, where it is (still) the one with this inode."""
        held = self._descriptors.get(inode)
        return self._open(self.path, inode) if held is None else held

    def open_former(self, inode: int, offset: int, expected: str | None) -> int | None:
        """A file that is no longer at the path: still open here, or beside it under another name, where a rotation
        put it while nobody was reading."""
        if inode in self._descriptors:
            return self._descriptors[inode]
        if self._sought == inode:
            return None
        self._sought = inode
        try:
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
