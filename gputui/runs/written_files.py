"""The files that an attempt writes: those that its processes hold open, and those in its folders."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

# A working directory may be a home directory, and a folder hold a data set. What is near comes first.
MAX_ENTRIES = 50_000
MAX_FOLDER_ENTRIES = 4_000  # a folder with more holds data
# Folders that no training writes its results to; hidden ones are passed over too.
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
# File systems that may not answer, by the beginnings of their names.
_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "beegfs", "ceph", "gpfs", "lustre")


def files_below(folder: Path, excluded: Collection[Path] = ()) -> Iterator[os.DirEntry[str]]:
    """The regular files below a folder, nearest first, among MAX_ENTRIES entries, and MAX_FOLDER_ENTRIES of one folder.

    Links to folders, and other file systems there that may not answer, are not followed, and what cannot be read is
    passed over.
    """
    waiting = deque([str(folder)])
    count = 0
    avoided = frozenset((*map(str, excluded), *_remote_mounts(folder)))
    while waiting:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:
            for entry in islice(entries, MAX_FOLDER_ENTRIES):
                count += 1
                if count > MAX_ENTRIES:
                    return
                if entry.is_file():
                    yield entry
                elif entry.is_dir(follow_symlinks=False) and not _is_passed_over(entry, avoided):
                    waiting.append(entry.path)


def _remote_mounts(folder: Path) -> Iterator[str]:
    """The paths below a folder where a remote file system is mounted."""
    real = os.path.realpath(folder)
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            # proc(5): the fifth field is the mount point, and the first one behind " - " the type.
            mount, _, source = line.partition(" - ")
            point = mount.split()[4].encode().decode("unicode_escape")
            if source.startswith(_REMOTE) and point.startswith(f"{real}/"):
                yield f"{folder}{point[len(real) :]}"


def _is_passed_over(entry: os.DirEntry[str], avoided: Collection[str]) -> bool:
    return entry.name.startswith(".") or entry.name in _PASSED_OVER or entry.path in avoided


def held_files(pids: Iterable[int]) -> set[str]:
    """The paths of the files that processes hold open for writing, as far as they can be seen."""
    return {path for pid in pids for path in _held_by(pid)}


def _held_by(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = str(Path(f"/proc/{pid}/fd/{name}").readlink())
                if path.startswith("/") and not path.startswith(_NO_FILES) and _is_written(pid, name):
                    yield path


def _is_written(pid: int, descriptor: str) -> bool:
    """Return whether a descriptor can be written to. Raises OSError."""
    for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
