"""Opening files that others may have put in place of what is expected there."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path, *, flags: int = 0) -> BufferedReader:
    """A regular file for reading; ``flags`` are more of os.open's. Raises OSError, also for anything that is no such
    file: the open of a FIFO waits for its other end, the reading of a device has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """What is in a regular file. Raises OSError as `open_regular` does, and ValueError if it is larger."""
    with open_regular(path) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError("too large")
    return raw
