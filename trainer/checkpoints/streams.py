"""The content of a checkpoint's files: written with a hash and signs of progress, and read again.

With --checkpoint-compression a file is one zstd or gzip stream of the same name, known by its first bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer.config.schema import Compression
from trainer.errors import CheckpointError

_PIECE_BYTES = 1 << 20
_GZIP_LEVEL = 1  # weights hardly shrink any further
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
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
    if _Progress.threads:
        return _Progress.bytes
    return -time.monotonic()


class HashingFile(io.RawIOBase):
    """Writes to an unbuffered file, syncs it now and then, and hashes what was written. Keeps the OSError."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.hash = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view:
                written = self._raw.write(view[:_PIECE_BYTES])
                self.hash.update(view[:written])
                self.bytes += written
                _Progress.bytes += written
                if self.bytes % _SYNC_BYTES < written:
                    os.fdatasync(self._raw.fileno())
                view = view[written:]
        except OSError as error:
            self.error = error
            raise
        return size


class _InPieces(io.RawIOBase):
    """Passes on to a compressor in pieces, so that progress shows within a large tensor."""

    def __init__(self, compressor: Any) -> None:
        self._compressor = compressor

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            self._compressor.write(view[start : start + _PIECE_BYTES])
        return len(view)


@contextlib.contextmanager
def _compressing(file: HashingFile, compression: Compression) -> Iterator[io.RawIOBase]:
    """Yield what writes to a file by way of a compressor, which ends with the block."""
    if compression == "none":
        yield file
        return
    compressor: Any
    if compression == "gzip":
        compressor = gzip.GzipFile(fileobj=cast(IO[bytes], file), mode="wb", compresslevel=_GZIP_LEVEL, mtime=0)
    else:
        import pyarrow

        compressor = pyarrow.CompressedOutputStream(file, "zstd")
    with compressor:
        yield _InPieces(compressor)


def write(content: Any, path: Path, compression: Compression = "none") -> tuple[str, int]:
    """torch.save to a file, and sync it. Returns its SHA-256 and size in bytes. Raises the OSError of the disk."""
    with path.open("wb", buffering=0) as raw:
        file = HashingFile(raw)
        try:
            with _compressing(file, compression) as stream:
                torch.save(content, cast(IO[bytes], stream))
        except Exception as error:
            raise file.error or error from None  # torch replaces a failed write's error by one about its archive
        os.fsync(raw.fileno())
    return file.hash.hexdigest(), file.bytes


def load_file(path: Path) -> Any:
    """The content of any file of a checkpoint, on the CPU: tensors are read when they are used, and no code is run.

    A compressed one is unpacked to a file without a name in the same folder. Raises CheckpointError.
    """
    try:
        with _unpacked(path) as plain:
            return torch.load(plain, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many types here; all mean that this file is no checkpoint of ours
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {first_line}") from error


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield the path of the file's plain content, to be opened inside."""
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        unpacked: Any
        if magic.startswith(_GZIP_MAGIC):
            unpacked = gzip.GzipFile(fileobj=file)
        elif magic == _ZSTD_MAGIC:
            import pyarrow

            unpacked = pyarrow.CompressedInputStream(file, "zstd")
        else:
            yield path
            return
        folder = path.parent if os.access(path.parent, os.W_OK) else None
        with tempfile.TemporaryFile(dir=folder) as plain:
            shutil.copyfileobj(unpacked, plain, _PIECE_BYTES)
            plain.flush()
            yield Path(f"/proc/self/fd/{plain.fileno()}")
