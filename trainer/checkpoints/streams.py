"""What a checkpoint is written through: it is hashed, and where asked compressed, on its way to the disk."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, Any, cast

import torch

_GZIP_FORMAT = 31  # zlib's wbits for a gzip header, which then has no time in it
_PIECE_BYTES = 1 << 20


class _Writing:
    """What this process writes at the moment: how many files, and the bytes of all files so far."""

    files = 0
    bytes = 0


def sign_of_life() -> float:
    """A number that changes as long as writing goes on, or nothing is being written that could stand still."""
    return _Writing.bytes if _Writing.files else -time.monotonic()


class _Sink(ABC):
    """What torch.save writes into; keeps the first error of the disk. It needs no more of a file than these two."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self.take(view)
        except OSError as error:
            self.error = self.error or error
            raise
        _Writing.bytes += len(view)
        return len(view)

    def flush(self) -> None:  # noqa: B027 - nothing is buffered here
        """torch.save asks for it."""

    @abstractmethod
    def take(self, view: memoryview) -> None:
        """Writes all of these bytes. Raises OSError."""

    def finish(self) -> None:  # noqa: B027 - most hold nothing back
        """Writes what is still held back."""


class HashingFile(_Sink):
    """Passes everything on to an unbuffered file and hashes what lies there."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.hash = hashlib.sha256()
        self.bytes = 0

    def take(self, view: memoryview) -> None:
        while len(view):
            written = self._raw.write(view)
            self.hash.update(view[:written])
            self.bytes += written
            view = view[written:]


class CompressedFile(_Sink):
    """Compresses what it passes on, in gzip's format. Two files of the same content are the same.

    Only runs of one byte are looked for: in weights, which are close to noise, nothing else repeats, and looking for it
    takes three times as long for a larger file.
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
    """torch.save into an unbuffered file, durable on return; the SHA-256 and the bytes of what lies there.

    Raises OSError in the disk's own words.
    """
    file = HashingFile(raw)
    sink: _Sink = CompressedFile(file) if compress else file
    _Writing.files += 1
    try:
        torch.save(content, cast(IO[bytes], sink))
        sink.finish()
    except Exception:
        # torch turns a failed write into an error about positions in its archive.
        if sink.error is not None:
            raise sink.error from None
        raise
    finally:
        _Writing.files -= 1
    # How far the kernel is cannot be seen, so this does not count as standing still.
    os.fsync(raw.fileno())
    return file.hash.hexdigest(), file.bytes


def load(path: Path) -> Any:
    """The tensors and plain values of a file that `save` wrote, on the CPU. Nothing in it can run code.

    Tensors are mapped from the file and read when they are used. A compressed file is unpacked once, into memory
    without a name that its tensors then share, so that no disk space is needed and nothing is held twice.
    """
    if path.suffix != ".gz":
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with os.fdopen(os.memfd_create(path.name), "wb") as unpacked:
        with gzip.open(path) as packed:
            while piece := packed.read(_PIECE_BYTES):
                unpacked.write(piece)
        unpacked.flush()
        return torch.load(f"/proc/self/fd/{unpacked.fileno()}", map_location="cpu", weights_only=True, mmap=True)
