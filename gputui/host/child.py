"""A short-lived child process that cannot block its caller: it ends at a deadline, even if it hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A process that waits in the kernel dies only when that ends; its caller waits no longer.
UNKILLABLE_SECONDS = 1.0


class ChildError(Exception):
    """The child gave no answer; the text is the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class ChildOutput:
    """What a child that ended by itself left: its exit status and its two streams."""

    status: int
    output: str
    complaint: str

    @property
    def last_words(self) -> str:
        """The last line that it complained with, else its exit status."""
        return (self.complaint.strip().splitlines() or [f"exit status {self.status}"])[-1][:120]


def run_child(
    argv: Sequence[str],
    *,
    deadline_seconds: float,
    environ: Mapping[str, str] | None = None,
    workdir: str | None = None,
) -> ChildOutput:
    """Run a command in a session of its own, and end all of it at the deadline.

    Raises ChildError when it cannot be started or is not over in time.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=None if environ is None else dict(environ),
            cwd=workdir,
        )
    except (OSError, ValueError) as error:
        raise ChildError(f"cannot be started: {getattr(error, 'strerror', None) or error}".lower()) from error
    try:
        output, complaint = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"did not answer within {deadline_seconds:g} s") from error
    finally:
        if process.returncode is None:  # not reaped yet, so the PID and the group are still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(UNKILLABLE_SECONDS)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return ChildOutput(process.returncode, output.decode("utf-8", "replace"), complaint.decode("utf-8", "replace"))


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
