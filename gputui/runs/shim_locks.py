"""The lock files of GPUs as a shim takes them, and the note in each of who holds it.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

from gputui.runs.shim_processes import boot_id, start_ticks_of

# Whoever only tests a lock holds it for an instant.
LOCK_SECONDS = 0.04
RETRY_SECONDS = 0.01  # four tries


class TakenLocks(NamedTuple):
    """The outcome of `take_locks`.

    Attributes:
        descriptors: through which the files are locked, by path.
        conflict: the path that another process holds; None if none is held.
        unusable: why a file cannot be locked, by path.
    """

    descriptors: dict[str, int]
    conflict: str | None
    unusable: dict[str, str]


class LockHolder(NamedTuple):
    """The content of a lock file about who holds it: anybody may write there, so it is only shown.

    Attributes:
        start_ticks: when the process began, in clock ticks since the boot.
        boot_id: the boot and PID namespace in which ``pid`` means anything.
        user: the login name.
        workspace: the label of the home that holds the GPU.
    """

    pid: int
    start_ticks: int
    boot_id: str
    uid: int
    user: str
    run_id: str
    workspace: str


def take_locks(paths: list[str], *, shared: bool = False) -> TakenLocks:
    """Lock files, all or none, in sorted order: alone, or ``shared``.

    A file that cannot be opened or locked is left out: it must not block a GPU.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + LOCK_SECONDS
    descriptors: dict[str, int] = {}
    unusable: dict[str, str] = {}
    for name in sorted(paths):
        try:
            descriptors[name] = locked(name, operation, deadline)
        except BlockingIOError:
            for descriptor in descriptors.values():
                os.close(descriptor)
            return TakenLocks({}, name, unusable)
        except OSError as error:
            unusable[name] = error.strerror or str(error)
    return TakenLocks(descriptors, conflict=None, unusable=unusable)


def locked(name: str, operation: int, deadline: float) -> int:
    """Lock a file by one of the operations of flock(2), and return its descriptor.

    Raises BlockingIOError if another process still holds it at ``deadline`` (monotonic), OSError if it is unusable.
    """
    while True:
        descriptor = open_lock(name)
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                raise
        else:
            return descriptor
        time.sleep(RETRY_SECONDS)


def note_holder(descriptor: int, run_id: str, workspace: str) -> None:
    """Write into a held lock file who holds it, for other homes and users; ``workspace`` is the label of its home.

    Without permission to write it stays unknown: the lock holds all the same.
    """
    pid = os.getpid()
    uid = os.getuid()
    # From the environment, because a directory of users in the network may not answer.
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or f"uid {uid}"
    start_ticks = start_ticks_of(pid) or 0
    holder = LockHolder(pid, start_ticks, boot_id(), uid=uid, user=user, run_id=run_id, workspace=workspace)
    note = json.dumps(holder._asdict()).encode()
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, note, 0)
        os.ftruncate(descriptor, len(note))


def open_lock(name: str, *, create: bool = True) -> int:
    """Open a lock file. Raises OSError if it cannot be opened or is no plain file of one name.

    Its folder may be writable for everybody: no link is followed, and no FIFO is waited for. A file that this user may
    not write is only read, which is enough for a lock.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(name, flags)
            break
        except PermissionError:
            descriptor = os.open(name, flags & ~os.O_ACCMODE | os.O_RDONLY)
            break
        except FileNotFoundError:
            if not create:
                raise
        # O_CREAT alone would be refused for another user's file in a sticky folder
        # (fs.protected_regular).
        with contextlib.suppress(FileExistsError):
            mode = 0o666 if Path(name).parent.stat().st_mode & stat.S_IWOTH else 0o600
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(descriptor, mode)
            break
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", name)
    return descriptor
