"""Files that are replaced as a whole, and reading of regular files, never of a FIFO or device.
Standard library only: also on targets."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` once it is on the disk, so that a reader finds the
    old content or the new, also after a crash. The umask limits ``mode``. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.new")
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet; none remains if that fails. Raises OSError."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def open_regular(path: Path) -> BufferedReader:
    """A regular file for reading. Raises OSError, also for a FIFO or device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a regular file. Raises OSError, and ValueError if it is larger."""
    with open_regular(path) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError("too large")
    return raw
