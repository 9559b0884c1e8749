"""The lock files of GPUs, by which homes and users of one machine keep off each other's GPUs.

Each GPU has one file in a folder of all users; the starter of an attempt holds it until it ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.core.text import clean, clip
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.runs.shim_locks import LockHolder, open_lock, take_locks

UNKNOWN_HOLDER = "another home or user"
MAX_NOTE_BYTES = 4096  # ten times what a shim writes
MAX_HOLDER_CELLS = 80  # a line of a terminal


class GpuHeldError(Exception):
    """Another home or user holds a GPU; the text names the GPU and the holder."""


class HeldLocks(Struct, frozen=True):
    """Locks that are held.

    Attributes:
        descriptors: through which they are held.
        paths: the locked files.
        problems: unusable lock files, with a remedy.
    """

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
        for_all = stat.S_ISVTX | stat.S_IWOTH
        if mode & for_all == for_all:
            return cls(run_lock)
        return cls(Path("/tmp"))  # noqa: S108 - see open_lock

    def path(self, uuid: str) -> Path:
        """The lock file of a GPU."""
        return self.folder / f"gputui-{uuid}.lock"

    def holder(self, uuid: str) -> str | None:
        """Who holds a GPU, alone or with others, in words; None if nobody does. Creates no file.

        To find that out, it holds the lock itself for a moment. Who takes the GPU just then waits
        for that moment, because `take_locks` tries again.
        """
        try:
            descriptor = open_lock(str(self.path(uuid)), create=False)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _noted_holder(descriptor) or UNKNOWN_HOLDER
        finally:
            os.close(descriptor)
        return None

    def take(self, uuids: Sequence[str], *, shared: bool = False) -> HeldLocks:
        """Lock all GPUs or none: alone, or ``shared`` with others that share them. Raises GpuHeldError.

        An unusable lock file is skipped: it must not keep anyone from a GPU.
        """
        # Makes the private folder of a home with simulated GPUs; that of all users is always there.
        self.folder.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
        uuid_of = {str(self.path(uuid)): uuid for uuid in uuids}
        descriptors, conflict, unusable = take_locks(list(uuid_of), shared=shared)
        if conflict is not None:
            holder = self.holder(uuid_of[conflict]) or UNKNOWN_HOLDER
            raise GpuHeldError(f"{uuid_of[conflict]} is held by {holder}: fuser -v {conflict}")
        problems = (f"{path} cannot be locked ({why}); have it removed" for path, why in unusable.items())
        return HeldLocks(tuple(descriptors.values()), tuple(descriptors), tuple(problems))


def _noted_holder(descriptor: int) -> str | None:
    """The holder that a held lock file names, in words; None if that process is not alive here."""
    try:
        note = msgspec.json.decode(os.pread(descriptor, MAX_NOTE_BYTES, 0), type=dict[str, Any])
        holder = msgspec.convert([note[name] for name in LockHolder._fields], LockHolder)
    except (OSError, KeyError, msgspec.MsgspecError):
        return None
    if is_alive(ProcessIdentity(holder.pid, holder.start_ticks, holder.boot_id)):
        return _holder_words(holder)
    return None


def _holder_words(holder: LockHolder) -> str:
    """``vit-1 of alice``; of this user ``vit-1 of the home /data/home``."""
    owner = holder.workspace if holder.uid == os.getuid() else holder.user
    return clip(clean(f"{holder.run_id} of {owner} (pid {holder.pid})"), MAX_HOLDER_CELLS)
