"""Reading of regular files, never of a FIFO or device. Standard library only: also on targets."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """A regular file for reading. Raises OSError, also for a FIFO or device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """What is in a regular file. Raises OSError, and ValueError if it is larger."""
    with open_regular(path) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError("too large")
    return raw
