"""A short-lived child process that cannot block its caller: it ends at a deadline, even if it
hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

# How long to wait for a killed process, which may hang in the kernel.
UNKILLABLE_SECONDS = 1.0


class ChildError(Exception):
    """The child gave no answer. The text ends a sentence about it."""


class ChildOutput(Struct, frozen=True):
    """The exit status and the two streams of a child that ended by itself."""

    status: int
    output: str
    errors: str

    @property
    def stderr_tail(self) -> str:
        """The last line of standard error, else the exit status."""
        return (self.errors.strip().splitlines() or [f"exit status {self.status}"])[-1][:120]


def run_child(
    argv: Sequence[str],
    *,
    deadline_seconds: float,
    environ: Mapping[str, str] | None = None,
    workdir: str | None = None,
) -> ChildOutput:
    """Run a command in a new session, and kill the session at the deadline. Raises ChildError if it
    cannot be started or is not over in time."""
    env = None if environ is None else dict(environ)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
            cwd=workdir,
        )
    except (OSError, ValueError) as error:
        raise ChildError(f"cannot be started: {getattr(error, 'strerror', None) or error}".lower()) from error
    try:
        output, errors = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"did not answer within {deadline_seconds:g} s") from error
    finally:
        if process.returncode is None:  # not reaped, so PID and group cannot have been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(UNKILLABLE_SECONDS)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return ChildOutput(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
