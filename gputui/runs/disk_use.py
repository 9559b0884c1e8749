"""The disk that a folder takes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

# st_blocks is in units of 512 bytes on any file system: stat(2).
_BLOCK_BYTES = 512


def sized_entries(folder: Path) -> Iterator[tuple[str, int]]:
    """The path of everything below a folder, with the bytes that are allocated for it. Raises OSError.

    Links count as themselves, hard links once. What vanishes meanwhile is left out.
    """
    linked: set[tuple[int, int]] = set()
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as folder_entries:
                entries = list(folder_entries)
        except FileNotFoundError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in linked:
                    continue
                linked.add((status.st_dev, status.st_ino))
            yield entry.path, status.st_blocks * _BLOCK_BYTES


def folder_bytes(folder: Path, seconds: float) -> int | None:
    """The bytes that a folder takes; None if it cannot be read to its end, or not within ``seconds``."""
    deadline = time.monotonic() + seconds
    total = 0
    try:
        for _, size_bytes in sized_entries(folder):
            total += size_bytes
            if time.monotonic() > deadline:
                return None
    except OSError:
        return None
    return total
