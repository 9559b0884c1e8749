"""The lock files of GPUs, by which homes and users of one machine keep off each other's GPUs.

Each GPU has one file in a folder of all users; the starter of an attempt holds it until it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.shim import open_lock, take_locks


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
        # World-writable and sticky in some distributions, and then the same for all users;
        # elsewhere /tmp is.
        run_lock = Path("/run/lock")
        mode = run_lock.stat().st_mode if run_lock.is_dir() else 0
        return cls(run_lock if mode & 0o1002 == 0o1002 else Path("/tmp"))  # noqa: S108 - see open_lock

    def path(self, uuid: str) -> Path:
        """The lock file of a GPU."""
        return self.folder / f"gputui-{uuid}.lock"

    def is_held(self, uuid: str) -> bool:
        """Whether anyone holds a GPU, alone or with others. Creates no file."""
        try:
            descriptor = open_lock(str(self.path(uuid)), create=False)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def take(self, uuids: Sequence[str], *, shared: bool = False) -> HeldLocks:
        """Lock all GPUs or none: alone, or ``shared`` with others that share them. Raises
        GpuHeldError. An unusable lock file is skipped: it must not keep anyone from a GPU."""
        problems: list[str] = []
        usable: dict[str, str] = {}
        self.folder.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
        for uuid in uuids:
            path = self.path(uuid)
            try:
                os.close(open_lock(str(path)))
                usable[str(path)] = uuid
            except OSError as error:
                problems.append(f"{path} cannot be locked ({error.strerror}); have it removed")
        held, conflict = take_locks(list(usable), shared=shared)
        if conflict:
            raise GpuHeldError(f"{usable[conflict[0]]} is held by another home or user: fuser -v {conflict[0]}")
        return HeldLocks(tuple(held), tuple(usable), tuple(problems))
