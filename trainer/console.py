"""Lines for the person who watches. A log on a full disk, or a reader that has left, never stops the training."""

from __future__ import annotations

import contextlib
import os
import sys


def show(text: str, *, error: bool = False) -> None:
    """A line on stdout, or on stderr, at once; lost where it cannot be written.

    It goes past Python's buffer: what that could not write would fail again, and fail the process, as the process ends.
    """
    stream = sys.stderr if error else sys.stdout
    if stream is None:  # the process was started with it closed
        return
    with contextlib.suppress(OSError, ValueError):  # a full disk or a reader that left; closed
        try:
            descriptor = stream.fileno()
        except OSError:  # something in memory that stands for it
            print(text, file=stream, flush=True)
            return
        stream.flush()
        _write(descriptor, f"{text}\n".encode(stream.encoding, errors="backslashreplace"))


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
