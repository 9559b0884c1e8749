"""Writing checkpoints through hashing and compression, and reading them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

_GZIP_FORMAT = 31  # zlib's wbits for a gzip header, which then has no time in it
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


class _Sink(ABC):
    """A target of torch.save, which needs only `write` and `flush`. Keeps the first OSError."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self.take(view)
        except OSError as error:
            self.error = self.error or error
            raise
        return len(view)

    def flush(self) -> None:  # noqa: B027 - nothing is buffered here
        """Do nothing."""

    @abstractmethod
    def take(self, view: memoryview) -> None:
        """Write all bytes. Raises OSError."""

    def finish(self) -> None:  # noqa: B027 - most sinks buffer nothing
        """Write what is still buffered."""


class HashingFile(_Sink):
    """Writes to an unbuffered file, syncs it now and then, and hashes what was written."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.hash = hashlib.sha256()
        self.bytes = 0

    def take(self, view: memoryview) -> None:
        while len(view):
            written = self._raw.write(view[:_PIECE_BYTES])
            _Progress.bytes += written
            self.hash.update(view[:written])
            self.bytes += written
            if self.bytes % _SYNC_BYTES < written:
                os.fdatasync(self._raw.fileno())
            view = view[written:]


class CompressedFile(_Sink):
    """Compresses in gzip's format, without a time stamp: equal content gives equal files.

    Uses run-length encoding only: weights are close to noise, so a full search takes three times as long, and the file
    becomes larger.
    """

    def __init__(self, below: HashingFile) -> None:
        self._below = below
        self._compressor = zlib.compressobj(level=1, wbits=_GZIP_FORMAT, strategy=zlib.Z_RLE)

    def take(self, view: memoryview) -> None:
        for start in range(0, len(view), _PIECE_BYTES):
            self._below.write(self._compressor.compress(view[start : start + _PIECE_BYTES]))

    def finish(self) -> None:
        self._below.write(self._compressor.flush())


def save(content: Any, raw: Any, *, compress: bool) -> tuple[str, int]:
    """torch.save into an unbuffered file, and sync it. Returns its SHA-256 and size in bytes.

    Raises the OSError of the disk.
    """
    file = HashingFile(raw)
    sink: _Sink = CompressedFile(file) if compress else file
    try:
        torch.save(content, cast(IO[bytes], sink))
        sink.finish()
    except Exception:
        # torch replaces a failed write's error by one about its archive.
        if sink.error is not None:
            raise sink.error from None
        raise
    os.fsync(raw.fileno())
    return file.hash.hexdigest(), file.bytes


def load(path: Path) -> Any:
    """Load a file that `save` wrote, on the CPU. Its content cannot run code.

    Tensors are mapped from the file, and read when they are used. A compressed file is unpacked into an anonymous
    memory file, which its tensors share: no disk space is needed, and nothing is in memory twice.
    """
    if path.suffix != ".gz":
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with os.fdopen(os.memfd_create(path.name), "wb") as unpacked:
        with gzip.open(path) as packed:
            while piece := packed.read(_PIECE_BYTES):
                unpacked.write(piece)
        unpacked.flush()
        return torch.load(f"/proc/self/fd/{unpacked.fileno()}", map_location="cpu", weights_only=True, mmap=True)
