"""The file behind a source: found by path or pattern, kept open, and recognised after a rewrite."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gputui.metrics.source_state import SourceState

# The fingerprint covers the file's first bytes and those just before the offset. Rewritten content
# that has grown past the old offset almost certainly differs in one of them.
HEAD_BYTES = 256
TAIL_BYTES = 64  # some bytes of the last line, which tell files apart that begin alike

# The share of the time that searches may take.
SEARCH_SHARE = 0.02

# The suffix of files rotated by logrotate and Python's logging; copies that people make have other
# names.
_ROTATED = re.compile(r"[.-]\d+")

# Up to the first wildcard that is not escaped.
_FIXED = re.compile(r"(?:[^*?\[]|\[[*?\[]\])*")


def ends(descriptor: int, offset: int) -> tuple[bytes, bytes]:
    """The bytes before ``offset`` that make up its fingerprint."""
    head = min(HEAD_BYTES, offset)
    tail = min(TAIL_BYTES, offset)
    return os.pread(descriptor, head, 0), os.pread(descriptor, tail, offset - tail)


def ends_after(head: bytes, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The bytes of the fingerprint after ``data``, which follows, has been read."""
    return (head + data[: HEAD_BYTES - len(head)]), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]


def fingerprint(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(b"%d " % len(head) + head + tail, digest_size=8).hexdigest()


def is_unchanged(descriptor: int, offset: int, expected: str | None) -> bool:
    """Return whether the bytes before ``offset`` still have this fingerprint."""
    return expected is None or fingerprint(*ends(descriptor, offset)) == expected


def state_at(path: Path, offset: int) -> SourceState | None:
    """The state of a file's reader behind its first ``offset`` bytes, or None at its start. Raises OSError."""
    if not offset:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return SourceState(
            os.fstat(descriptor).st_ino, 0, offset, skipping=False, fingerprint=fingerprint(*ends(descriptor, offset))
        )
    finally:
        os.close(descriptor)


# --- patterns -------------------------------------------------------------------------------------


def has_wildcards(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def fixed_part(pattern: str) -> Path:
    """The folder that holds whatever a pattern of folders matches."""
    fixed = _FIXED.match(pattern)[0]  # type: ignore[index]
    folder = fixed if fixed == pattern else fixed.rpartition("/")[0]
    return Path(re.sub(r"\[([*?\[])\]", r"\1", folder))


def may_overlap(pattern: str, second: str) -> bool:
    if has_wildcards(pattern) and has_wildcards(second):
        folder = _fixed_folder(pattern)
        second_folder = _fixed_folder(second)
        return folder.startswith(second_folder) or second_folder.startswith(folder)
    return pattern == second or _covers(pattern, second) or _covers(second, pattern)


def _fixed_folder(pattern: str) -> str:
    """The folder up to the first wildcard, with a slash."""
    return _FIXED.match(pattern)[0].rpartition("/")[0] + "/"  # type: ignore[index]


def _covers(pattern: str, path: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))


def _glob_part(part: str) -> str:
    if part == "**":
        return part
    # Within a name, ** is a *.
    return re.sub(r"\*+", "*", part)


def find(pattern: str) -> Iterator[Path]:
    """The existing files and folders that match an absolute ``pattern``, hidden ones only where it
    names them. A ``**`` follows no links to folders, which may form a circle."""
    parts = list(map(_glob_part, Path(pattern).parts[1:]))
    hidden = [part for part in parts if part.startswith(".")]
    below = "/".join(parts)
    if parts[-1] == "**":
        below += "/*"
    for path in Path("/").glob(below):
        names = (part for part in path.parts if part.startswith("."))
        if all(any(fnmatch.fnmatchcase(name, hidden_part) for hidden_part in hidden) for name in names):
            yield path


class Matches:
    """The files that match a pattern. Searches take a small share of the time."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._found: list[tuple[str, os.stat_result]] = []
        self._search_at = 0.0

    def newest(self, *, at_once: bool = False) -> list[tuple[str, os.stat_result]]:
        """The regular files at the last search, or now if one is due or ``at_once``, the one that
        was written last first."""
        if at_once or time.monotonic() >= self._search_at:
            began = time.thread_time()
            # What was found before stands if a folder goes, or cannot be read, amid the search.
            with contextlib.suppress(OSError):
                self._found = self._search()
            self._search_at = time.monotonic() + (time.thread_time() - began) / SEARCH_SHARE
        return self._found

    def _search(self) -> list[tuple[str, os.stat_result]]:
        """Raises OSError."""
        matches = []
        for path in find(self._pattern):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    matches.append((str(path), status))
        return sorted(matches, key=lambda match: (match[1].st_mtime_ns, match[0]), reverse=True)


# --- descriptors ----------------------------------------------------------------------------------


class FollowedFile:
    """Descriptors, by inode, of the file at ``path``, or of the newest match of a pattern. One
    outlives the name, so a renamed file can be read to its end. Once a newer match has followed
    another, the older is never read again."""

    def __init__(self, path: str, *, is_pattern: bool) -> None:
        self.path = path
        self.matches = Matches(path) if is_pattern else None
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
        for stale in [number for number in self._descriptors if number != inode]:
            os.close(self._descriptors.pop(stale))

    def status(self, *, at_once: bool = False) -> os.stat_result | None:
        """The status of the file at the path; None without a regular file. The newest of several
        files is searched for occasionally, or now if ``at_once``."""
        if self.matches is not None:
            candidates = [((status.st_ino, path), path) for path, status in self.matches.newest(at_once=at_once)]
            self._left &= {file for file, _ in candidates}
            file, path = next((candidate for candidate in candidates if candidate[0] not in self._left), (None, ""))
            if file is None:
                return None
            if self._followed is not None and self._followed[0] != file[0]:
                self._left.add(self._followed)
            self._followed = file
            self.path = path
        try:
            status = Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISREG(status.st_mode):
            return status
        return None

    def open_current(self, inode: int) -> int | None:
        """Open the file at the path if it has this inode; an open file stays open."""
        descriptor = self._descriptors.get(inode)
        if descriptor is None:
            return self._open(self.path, inode)
        return descriptor

    def open_former(self, inode: int, offset: int, expected: str | None) -> int | None:
        """Open a file that is no longer at the path: it is still open, or beside it under the name that a rotation gave
        it.

        Args:
            offset, expected: How far it was read, and the fingerprint there, by which it is recognised.

        Returns:
            Its descriptor; None if it is not found.
        """
        descriptor = self._descriptors.get(inode)
        if descriptor is not None or self._sought == inode:
            return descriptor
        self._sought = inode
        if self.matches is not None:
            matches = self.matches.newest(at_once=True)
            candidates = [path for path, status in matches if status.st_ino == inode]
        else:
            candidates = [entry.path for entry in self._beside() if entry.inode() == inode]
        for path in candidates:
            descriptor = self._open(path, inode)
            if descriptor is not None:
                if is_unchanged(descriptor, offset, expected):
                    return descriptor
                os.close(self._descriptors.pop(inode))
        return None

    def open_next(self, inode: int, current: int) -> int:
        """Open the file that followed the one with this inode: the oldest one rotated since, else the one at the path.

        Args:
            current: The inode of the file at the path.

        Returns:
            Its inode.
        """
        ended = os.fstat(self._descriptors[inode]).st_mtime_ns
        name = Path(self.path).name
        since = []
        for entry in self._beside():
            is_rotated = _ROTATED.fullmatch(entry.name.removeprefix(name))
            if is_rotated and entry.inode() not in (inode, current):
                with contextlib.suppress(FileNotFoundError):
                    since.append((entry.stat().st_mtime_ns, entry.inode(), entry.path))
        for modified, rotated, path in sorted(since):
            if modified > ended and self._open(path, rotated) is not None:
                return rotated
        self.open_current(current)
        return current

    def _beside(self) -> list[os.DirEntry[str]]:
        with contextlib.suppress(OSError):
            return list(os.scandir(Path(self.path).parent))
        return []

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
