"""Trim logs that are still being written.

A rank keeps its log open, often without O_APPEND, so that the file can neither be renamed nor truncated: the writer
would continue at its old offset. Instead, a hole is punched into the middle (fallocate(2), FALLOC_FL_PUNCH_HOLE): all
other bytes keep their offset, and a line before the gap says how much is missing. Readers skip the gap
(`gputui.runs.logs`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

# linux/falloc.h
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
# Holes consist of whole blocks; common file systems have smaller ones.
_BLOCK_BYTES = 64 << 10
_NOTHING_IS_READ: Mapping[Path, int] = MappingProxyType({})
# st_blocks is in units of 512 bytes on any file system: stat(2).
_STAT_BLOCK_BYTES = 512


class Quota(Struct, frozen=True):
    """The disk that one log file may take, and what is kept of a larger one."""

    limit_bytes: int = 2 << 30
    head_bytes: int = 64 << 20
    tail_bytes: int = 512 << 20


def gap(size: int, quota: Quota, read_bytes: int | None = None) -> tuple[int, int] | None:
    """The byte range that a log of this size should lose, in whole blocks, or None. ``read_bytes`` is the number of
    bytes read as metrics, if the log has metrics. Unread bytes are kept, and so is the block before them, which the
    reader uses to recognize the file."""
    begin = quota.head_bytes // _BLOCK_BYTES * _BLOCK_BYTES
    end = size - quota.tail_bytes
    if read_bytes is not None:
        end = min(end, read_bytes - _BLOCK_BYTES)
    end = end // _BLOCK_BYTES * _BLOCK_BYTES
    return (begin, end) if end > begin else None


def trim(path: Path, quota: Quota, read_bytes: int | None = None) -> int | None:
    """Trim a log that exceeds its quota; ``read_bytes`` as for `gap`. Return the number of missing bytes, or None if
    there was nothing to do. Raises OSError, also if the file system does not support holes."""
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
            # Trimmed already; the rest is not read yet.
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


class Trimmed(Struct, frozen=True):
    """Result for one log: the bytes missing from it, or why it could not be trimmed."""

    path: Path
    missing_bytes: int
    problem: str | None = None


def trim_all(paths: Iterable[Path], quota: Quota, read_bytes: Mapping[Path, int] = _NOTHING_IS_READ) -> list[Trimmed]:
    """Trim each log; missing files are skipped. ``read_bytes`` as for `gap`, by path."""
    trimmed_logs = []
    for path in paths:
        try:
            missing = trim(path, quota, read_bytes.get(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            trimmed_logs.append(Trimmed(path, 0, error.strerror or str(error)))
            continue
        if missing is not None:
            trimmed_logs.append(Trimmed(path, missing))
    return trimmed_logs
