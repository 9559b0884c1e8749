"""Trimming logs that are still written.

A rank keeps its log open, often not for appending, so that the file can neither be renamed nor cut: the writer would
go on at its old place. Instead the middle is given back to the file system (fallocate(2), FALLOC_FL_PUNCH_HOLE): every
byte that is left stays where it was, the head tells how the attempt began, the tail how it goes, and a line where the
gap begins says how much is missing. Readers jump over the gap (`gputui.runs.logs`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# linux/falloc.h
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
# Holes are of whole blocks; no file system here has larger ones.
_BLOCK_BYTES = 64 << 10
_NOTHING_IS_READ: Mapping[Path, int] = MappingProxyType({})
# st_blocks is in units of 512 bytes on any file system: stat(2).
_STAT_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Quota:
    """How much disk one log file may take, and what is kept of it when it takes more."""

    limit_bytes: int = 2 << 30
    head_bytes: int = 64 << 20
    tail_bytes: int = 512 << 20


def gap(size: int, quota: Quota, read_bytes: int | None = None) -> tuple[int, int] | None:
    """The bytes (from, up to) that a log of this size is to lose, in whole blocks, or None. ``read_bytes``: how far
    its metrics were read, where metrics are read from it. What was not is kept, and so is the block before, whose last
    bytes are in the reader's fingerprint of the file."""
    begin = quota.head_bytes // _BLOCK_BYTES * _BLOCK_BYTES
    end = size - quota.tail_bytes
    if read_bytes is not None:
        end = min(end, read_bytes - _BLOCK_BYTES)
    end = end // _BLOCK_BYTES * _BLOCK_BYTES
    return (begin, end) if end > begin else None


def trim(path: Path, quota: Quota, read_bytes: int | None = None) -> int | None:
    """Give the middle of one log back where it takes more than its quota; ``read_bytes`` as for `gap`. Returns the
    bytes that are missing from it now, None if there was nothing to do. Raises OSError, also if the file system
    cannot do it."""
    status = path.stat()
    if status.st_blocks * _STAT_BLOCK_BYTES <= quota.limit_bytes:
        return None
    hole = gap(status.st_size, quota, read_bytes)
    if hole is None:
        return None
    begin, end = hole
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.lseek(descriptor, begin, os.SEEK_DATA) >= end:
            # Given back already; the rest waits for its reader.
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        length = ctypes.c_int64(end - begin)
        if libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(begin), length) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        words = f"\n[gputui: {end - begin} bytes of this log were dropped here to bound its size]\n".encode()
        os.pwrite(descriptor, words, begin - len(words))
    finally:
        os.close(descriptor)
    return end - begin


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What became of one log: bytes missing from it, or why it could not be bounded."""

    path: Path
    missing_bytes: int
    problem: str | None = None


def trim_all(paths: Iterable[Path], quota: Quota, read_bytes: Mapping[Path, int] = _NOTHING_IS_READ) -> list[Trimmed]:
    """Trim each; files that are gone are passed over. ``read_bytes`` as for `gap`, by path."""
    found = []
    for path in paths:
        try:
            missing = trim(path, quota, read_bytes.get(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append(Trimmed(path, 0, error.strerror or str(error)))
            continue
        if missing is not None:
            found.append(Trimmed(path, missing))
    return found
