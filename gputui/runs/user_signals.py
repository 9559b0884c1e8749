"""Signals from a person to a process, sent only if its PID, start time and owner match."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gputui.runs.identity import deliver, open_pidfd, read_stat


class SignalRefusedError(Exception):
    """The signal was not sent; the text is a sentence that says why."""


def send(pid: int, start_ticks: int | None, number: signal.Signals) -> None:
    """Signal the process that has ``pid`` and began at ``start_ticks`` (field 22 of /proc/PID/stat).

    The process is checked after a pidfd is opened, so that a reused PID is never signalled. Without pidfds, the check
    comes right before the signal. Raises SignalRefusedError.
    """
    if start_ticks is None:
        raise SignalRefusedError(
            f"PID {pid} cannot be tied to a process that is seen here: it is in a container, or outside of ours."
        )
    if pid in (1, os.getpid()):
        raise SignalRefusedError(f"PID {pid} is {'this screen' if pid != 1 else 'the first process of the system'}.")
    try:
        descriptor = open_pidfd(pid)
    except ProcessLookupError:
        raise SignalRefusedError(f"PID {pid} has ended.") from None
    try:
        stat = read_stat(pid)
        if stat is None or stat.is_dead:
            raise SignalRefusedError(f"PID {pid} has ended.")
        if stat.start_ticks != start_ticks:
            raise SignalRefusedError(f"PID {pid} is another process by now; the one on the list has ended.")
        _check_ours(pid)
        deliver(pid, descriptor, number)
    except ProcessLookupError:
        raise SignalRefusedError(f"PID {pid} has ended.") from None
    except PermissionError:
        raise SignalRefusedError(f"The kernel does not let you signal PID {pid}.") from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _check_ours(pid: int) -> None:
    """Check that the process is this user's and in this PID namespace. Raises SignalRefusedError."""
    folder = Path("/proc") / str(pid)
    try:
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise SignalRefusedError(f"PID {pid} is another user's; only its owner may signal it from here.")
        if (folder / "ns" / "pid").stat().st_ino != Path("/proc/self/ns/pid").stat().st_ino:
            raise SignalRefusedError(f"PID {pid} runs in a container; signal it there.")
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise SignalRefusedError(f"PID {pid} has ended.") from None
        raise SignalRefusedError(f"gputui cannot identify PID {pid} ({error.strerror}).") from None
