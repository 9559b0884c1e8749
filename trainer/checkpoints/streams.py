"""Writing checkpoints through a hash, and reading them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

_PIECE_BYTES = 1 << 20
_SYNC_BYTES = 1 << 28  # a sync shows no progress, so one of more bytes could look like a hang


class _Progress:
    """Threads of this process that are `writing`, and the bytes of all files so far."""

    threads = 0
    bytes = 0


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Inside, only bytes written count as progress. Also around opening and syncing, at which a disk can be stuck."""
    _Progress.threads += 1
    try:
        yield
    finally:
        _Progress.threads -= 1


def sign_of_life() -> float:
    """A number that changes while writing makes progress, and while nothing is being written."""
    return _Progress.bytes if _Progress.threads else -time.monotonic()


class HashingFile:
    """Writes to an unbuffered file, syncs it now and then, and hashes what was written. Keeps the first OSError."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.hash = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while len(view):
                written = self._raw.write(view[:_PIECE_BYTES])
                _Progress.bytes += written
                self.hash.update(view[:written])
                self.bytes += written
                if self.bytes % _SYNC_BYTES < written:
                    os.fdatasync(self._raw.fileno())
                view = view[written:]
        except OSError as error:
            self.error = self.error or error
            raise
        return size

    def flush(self) -> None:
        """Do nothing: torch.save calls this, and nothing is buffered here."""


def save(content: Any, raw: Any) -> tuple[str, int]:
    """torch.save into an unbuffered file, and sync it. Returns its SHA-256 and size in bytes.

    Raises the OSError of the disk.
    """
    file = HashingFile(raw)
    try:
        torch.save(content, cast(IO[bytes], file))
    except Exception:
        # torch replaces a failed write's error by one about its archive.
        if file.error is not None:
            raise file.error from None
        raise
    os.fsync(raw.fileno())
    return file.hash.hexdigest(), file.bytes


def load(path: Path) -> Any:
    """Load a file that `save` wrote, on the CPU: its tensors are read when they are used. It cannot run code."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
