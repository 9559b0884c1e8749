"""The command of an attempt: its start with the settings of the launching shell, and its end.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

from gputui.runs.shim_signals import restore_signals


def spawn(plan: dict[str, Any], directory: Path) -> subprocess.Popen[bytes]:
    """Start the command of ``plan`` (attempt.json) with the settings of the shell that launched the run.

    Raises OSError.
    """
    shell = plan.get("shell") or {}
    limits = limits_to_set(shell.get("limits") or {})

    def prepare() -> None:
        restore_signals()
        apply_shell(limits, shell.get("nice"), shell.get("affinity"), shell.get("umask"))

    with (directory / plan.get("output", "output.log")).open("ab", buffering=0) as output:
        return subprocess.Popen(
            plan["argv"],
            cwd=plan["cwd"],
            env={**(shell.get("environment") or os.environ), **plan["env"]},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The shim still has a single thread, so code between fork and exec is safe.
            preexec_fn=prepare,
        )


class CommandProcess:
    """The process of the attempt's command.

    Attributes:
        pid: 0 before the start.
        started_clock: when it was started (monotonic seconds), None before.
        wait_status: how it ended, as `os.waitpid` says it; None until then.
        free_bytes: free space when it ended: on a full disk it could not write why it failed.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.started_clock: float | None = None
        self.wait_status: int | None = None
        self.free_bytes: int | None = None

    @property
    def has_started(self) -> bool:
        return self.pid != 0

    @property
    def has_ended(self) -> bool:
        return self.wait_status is not None

    @property
    def exit_code(self) -> int | None:
        """None before its end, and if a signal ended it."""
        if self.wait_status is None or os.WIFSIGNALED(self.wait_status):
            return None
        return os.waitstatus_to_exitcode(self.wait_status)

    @property
    def signal_number(self) -> int | None:
        """The signal that ended it; None if none has."""
        if self.wait_status is None or not os.WIFSIGNALED(self.wait_status):
            return None
        return os.WTERMSIG(self.wait_status)

    @property
    def ran_seconds(self) -> float | None:
        """The time since its start; a clock that was set meanwhile would make the difference of two dates false."""
        if self.started_clock is None:
            return None
        return time.monotonic() - self.started_clock


def limits_to_set(limits: dict[str, list[int]]) -> list[tuple[int, tuple[int, int]]]:
    """Resource limits as far as this process may set them."""
    settable = []
    for name, (soft, hard) in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            continue
        if os.geteuid() != 0:
            _, own_hard = resource.getrlimit(number)
            hard = lower_limit(hard, own_hard)
            soft = lower_limit(soft, hard)
        settable.append((number, (soft, hard)))
    return settable


def lower_limit(limit: int, most: int) -> int:
    """The lower of two resource limits, of which each may be unlimited."""
    if most == resource.RLIM_INFINITY:
        return limit
    if limit == resource.RLIM_INFINITY:
        return most
    return min(limit, most)


def apply_shell(
    limits: list[tuple[int, tuple[int, int]]], nice: int | None, affinity: list[int] | None, umask: int | None
) -> None:
    """Set what the launching shell had; runs between fork and exec. What the kernel refuses stays
    as it is."""
    if umask is not None:
        os.umask(umask)
    with contextlib.suppress(OSError):
        if nice is not None:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    with contextlib.suppress(OSError):
        if affinity:
            os.sched_setaffinity(0, affinity)
    for number, pair in limits:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, pair)


def free_bytes(directory: Path) -> int | None:
    """The free space of a folder's disk, or None if unknown."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
    return None
