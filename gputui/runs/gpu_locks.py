"""The lock files of GPUs, by which homes and users of one machine keep off each other's GPUs.

Each GPU has one file in a folder that all users share, and one in each folder of this user that an older gputui may
use. The starter of an attempt holds all of them until it ends: alone, or together with trials of the same study.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.identity import environment_of
from gputui.runs.shim import locked_mark, open_lock, take_locks


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
    """The folders of lock files: those of this user, and one that all users share, if any."""

    own: tuple[Path, ...]
    shared: Path | None

    @classmethod
    def of(cls, workspace: Workspace, environ: Mapping[str, str]) -> GpuLocks:
        """The folders for a home. Simulated GPUs and their locks are private to it."""
        if workspace.scenario.exists():
            return cls((workspace.state / "locks",), None)
        # Exists for cron, sudo and containers too, which lack XDG_RUNTIME_DIR; an older gputui uses one of the two.
        own = [Path("/tmp") / f"gputui-{os.getuid()}"]  # noqa: S108 - its owner is checked before use
        runtime = Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
        if _owner(runtime) == os.getuid():
            own.append(runtime / "gputui")
        # World-writable and sticky in some distributions, and then the same for all users; elsewhere /tmp is.
        run_lock = Path("/run/lock")
        shared = run_lock if _is_for_everybody(run_lock) else Path("/tmp")  # noqa: S108 - see open_lock
        return cls(tuple(folder / "leases" for folder in own), shared)

    def paths(self, uuid: str) -> list[Path]:
        """The usable lock files of a GPU: those in another user's folder are left out."""
        own = [folder / f"{uuid}.lock" for folder in self.own if why_not_private(folder) is None]
        return own if self.shared is None else [*own, self.shared / f"gputui-{uuid}.lock"]

    def holder(self, uuid: str) -> str | None:
        """Who else holds a GPU, in words that follow "is held by"; None if no one does. Creates no file."""
        for path in self.paths(uuid):
            try:
                descriptor = open_lock(str(path), create=False)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder_of(descriptor)
            except OSError:
                # A file system without such locks.
                continue
            finally:
                os.close(descriptor)
            if (mark := _locked_mark(path)) is not None:
                return mark
        return None

    def take(self, uuids: Sequence[str], group: str | None = None) -> HeldLocks:
        """Lock all GPUs or none: alone, or together with holders of the same ``group``.

        Raises GpuHeldError. A lock file that another user made unusable is skipped: it must not keep anyone from a GPU.
        """
        problems = [why for folder in self.own if uuids and (why := make_private(folder)) is not None]
        usable: dict[str, str] = {}
        for uuid in uuids:
            for path in self.paths(uuid):
                try:
                    os.close(open_lock(str(path)))
                except OSError as error:
                    problems.append(_unusable(path, error))
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


def make_private(folder: Path) -> str | None:
    """Make a folder of locks and its parent, both private to this user. Returns the problem and its remedy if that
    fails."""
    for place in (folder.parent, folder):
        try:
            place.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
            if _owner(place) == os.getuid() and place.lstat().st_mode & 0o077 and not place.is_symlink():
                place.chmod(PRIVATE_DIR_MODE)
        except OSError as error:
            return f"GPUs are not locked in {folder}: {place}: {error.strerror}"
    return why_not_private(folder)


def why_not_private(folder: Path) -> str | None:
    """Why a folder of locks cannot be used, and the remedy; None if it and its parent are this user's or do not
    exist."""
    for place in (folder.parent, folder):
        try:
            status = place.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"GPUs are not locked in {folder}: {place}: {error.strerror}"
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return f"GPUs are not locked in {folder}: {place} belongs to {_user(status.st_uid)}; have it removed"
    return None


def _unusable(path: Path, error: OSError) -> str:
    owner = _owner(path)
    whose = "" if owner is None else f", of {_user(owner)}"
    return (
        f"{path} cannot be locked ({error.strerror}{whose}); have it removed, for it keeps users from seeing each other"
    )


def _locked_mark(path: Path) -> str | None:
    """Who holds a GPU as part of a group, by its lock file; None if no one does."""
    try:
        # One try: a mark that another process is just probing may be reported; callers ask again.
        mark = locked_mark(str(path), time.monotonic())
        descriptor = None if mark is None else open_lock(mark, create=False)
    except OSError:
        return None
    if descriptor is None:
        return None
    try:
        return _holder_of(descriptor)
    finally:
        os.close(descriptor)


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


def _is_for_everybody(folder: Path) -> bool:
    """Whether all users may create files in it and none may remove another's."""
    try:
        mode = folder.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & 0o1002 == 0o1002
