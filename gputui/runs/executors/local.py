"""The executor of this machine: the shim, which needs only the standard library of Python 3.9 or later. If this
installation's Python is replaced or removed under a running agent, another one runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gputui.runs import shim
from gputui.runs.executors.base import Executor, ExecutorGoneError

TRIAL_SECONDS = 5.0
_TRIAL = (
    "import ctypes, fcntl, json, resource, select, signal, subprocess, sys, threading; "
    "sys.exit(sys.version_info < (3, 9))"
)

# Another device, inode or time is another program.
_Seen = tuple[int, int, int]


def other_pythons() -> Iterator[str]:
    """The interpreters to try if the Python of this installation is unusable: the one its environment was made from,
    installed ones, and the executable of this process, which can be read even if it was removed."""
    base = getattr(sys, "_base_executable", None)
    found = (base, shutil.which("python3"), "/usr/bin/python3", f"/proc/{os.getpid()}/exe")
    return (path for path in found if path)


class LocalExecutor(Executor):
    """Runs attempts on this machine. Searches for another interpreter only if the file of the one in use changes."""

    file_name = Path(shim.__file__).name

    def __init__(self, own: str = sys.executable, others: Callable[[], Iterator[str]] = other_pythons) -> None:
        self._own = own
        self._others = others
        # It runs this process.
        self._in_use = (own, _seen(own))
        self._failed: set[tuple[str, _Seen]] = set()

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        return (self._find(), "-I", "-S", shim.__file__, str(folder), *map(str, locks))

    def _find(self) -> str:
        path, seen = self._in_use
        if seen is None or _seen(path) != seen:
            path = self._search()
        if not Path(shim.__file__).is_file():
            raise ExecutorGoneError(
                f"gputui's own files are gone ({shim.__file__}); install it again, then restart the agent"
            )
        return path

    def _search(self) -> str:
        for path in (self._own, *self._others()):
            seen = _seen(path)
            if seen is None or (path, seen) in self._failed:
                continue
            if _works(path):
                self._in_use = (path, seen)
                return path
            self._failed.add((path, seen))
        gone = "is gone" if _seen(self._own) is None else "was replaced and does not work"
        raise ExecutorGoneError(
            f"the Python of this gputui {gone} ({self._own}), and no other was found; install gputui again, then "
            "gputui agent stop and gputui agent start"
        )


def _seen(path: str) -> _Seen | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _works(path: str) -> bool:
    """Whether an interpreter starts and has the modules that the shim imports."""
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", _TRIAL],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
