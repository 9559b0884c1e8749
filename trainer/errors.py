"""Errors for users: one line on stderr and an exit code instead of a traceback. `show` writes such lines."""

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
    """An error of one rank that the others do not have, such as data that it could not read."""


class CheckpointError(TrainerError):
    """A checkpoint is missing, damaged or does not fit this model."""


def one_line(error: Exception) -> str:
    """The message of another library's error, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def show(text: str, *, error: bool = False) -> None:
    """Write a line to stdout, or stderr. Errors such as a full disk or a closed pipe are ignored.

    Bypasses Python's buffer, which would retry a failed write at exit, and fail the process.
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
        line = f"{text}\n".encode(stream.encoding, errors="backslashreplace")
        while line:
            line = line[os.write(descriptor, line) :]
