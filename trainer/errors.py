"""The errors that are meant for a person: one line on stderr and an exit code, never a traceback.

`show` writes a line for the person who watches. A log on a full disk, or a reader that has left, never stops the
training.
"""

from __future__ import annotations

import contextlib
import os
import sys


class TrainerError(Exception):
    """Training cannot continue; the message says what, where and what to do next."""

    exit_code = 1


class SettingsError(TrainerError):
    """A setting is missing, unknown or out of range."""

    exit_code = 2


class RankError(TrainerError):
    """Something that one rank has met and the others know nothing of, such as data that it could not read."""


class CheckpointError(TrainerError):
    """A checkpoint is missing, damaged or does not fit this model."""


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
        except OSError:  # an in-memory replacement
            print(text, file=stream, flush=True)
            return
        stream.flush()
        _write(descriptor, f"{text}\n".encode(stream.encoding, errors="backslashreplace"))


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
