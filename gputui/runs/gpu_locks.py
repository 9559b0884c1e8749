"""The lock files of GPUs, by which homes and users of one machine keep off each other's GPUs.

Each GPU has one file in a folder that all users share. The starter of an attempt holds it until it ends: alone, or
together with trials of the same study.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.identity import environment_of
from gputui.runs.shim import is_shared, open_lock, take_locks


class GpuHeldError(Exception):
    """Another home or user holds a GPU; the text names the GPU and the holder."""


class HeldLocks(Struct, frozen=True):
    """Locks held through ``descriptors``. ``problems`` name unusable lock files, with a remedy."""

    descriptors: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def close(self) -> None:
        """Release them in this process; one that inherited the descriptors still holds them."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class GpuLocks(Struct, frozen=True):
    """The lock files in a folder."""

    folder: Path

    @classmethod
    def of(cls, workspace: Workspace) -> GpuLocks:
        """The locks that a home uses. Simulated GPUs and their locks are private to it."""
        if workspace.scenario.exists():
            return cls(workspace.state / "locks")
        # World-writable and sticky in some distributions, and then the same for all users; elsewhere /tmp is.
        run_lock = Path("/run/lock")
        mode = run_lock.stat().st_mode if run_lock.is_dir() else 0
        return cls(run_lock if mode & 0o1002 == 0o1002 else Path("/tmp"))  # noqa: S108 - see open_lock

    def path(self, uuid: str) -> Path:
        """The lock file of a GPU."""
        return self.folder / f"gputui-{uuid}.lock"

    def holder(self, uuid: str) -> str | None:
        """Who else holds a GPU, in words that follow "is held by"; None if no one does. Creates no file."""
        try:
            descriptor = open_lock(str(self.path(uuid)), create=False)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return _holder_of(descriptor) if is_shared(descriptor) else None
        except BlockingIOError:
            return _holder_of(descriptor)
        except OSError:
            # A file system without such locks.
            return None
        finally:
            os.close(descriptor)

    def take(self, uuids: Sequence[str], group: str | None = None) -> HeldLocks:
        """Lock all GPUs or none: alone, or together with holders of the same ``group``.

        Raises GpuHeldError. A lock file that another user made unusable is skipped: it must not keep anyone from a GPU.
        """
        problems: list[str] = []
        usable: dict[str, str] = {}
        for uuid in uuids:
            path = self.path(uuid)
            try:
                self.folder.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
                os.close(open_lock(str(path)))
            except OSError as error:
                owner = _owner(path)
                whose = "" if owner is None else f", of {_user(owner)}"
                problems.append(
                    f"{path} cannot be locked ({error.strerror}{whose}); have it removed, "
                    "for it keeps users from seeing each other"
                )
            else:
                usable[str(path)] = uuid
        held, conflict = take_locks(list(usable), group)
        if conflict:
            uuid = usable[conflict[0]]
            raise GpuHeldError(f"{uuid} is held by {self.holder(uuid) or 'another home or user'}")
        return HeldLocks(tuple(held), tuple(usable), tuple(problems))


def group_of(workspace: Workspace, study_id: str) -> str:
    """The group of a study's trials: sixteen hexadecimal digits, unique to the home and study."""
    return hashlib.sha256(f"{os.getuid()}\n{workspace.state.resolve()}\n{study_id}".encode()).hexdigest()[:16]


def _holder_of(descriptor: int) -> str:
    """Who holds the lock of an open file, by /proc/locks."""
    status = os.fstat(descriptor)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        lines = []
    for fields in (line.split() for line in lines):
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == name:
            return _who(int(fields[4]))
    return "another home or user"


def _who(pid: int) -> str:
    owner = _owner(Path(f"/proc/{pid}"))
    if owner is None:
        return "another home or user"
    if owner != os.getuid():
        return f"{_user(owner)} (pid {pid})"
    environment = environment_of(pid) or {}
    run_id, run_dir = environment.get("GPUTUI_RUN_ID"), environment.get("GPUTUI_RUN_DIR")
    return f"{run_id} of another home ({run_dir})" if run_id and run_dir else f"another home (pid {pid})"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None
