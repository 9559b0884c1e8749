"""What a run's folder looks like from outside, by looking: for where the kernel does not tell of changes."""

from __future__ import annotations

import os
from pathlib import Path

# Never looked into: nothing in it is of interest before the run says so, and a checkpoint may be thousands of files.
SKIPPED = frozenset({"checkpoints", "incidents"})
MAX_ENTRIES = 2000


def signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """The files below a folder as (path, modification time in ns, size): differs whenever one grew, came or went."""
    found: list[tuple[str, int, int]] = []
    pending = [str(folder)]
    while pending and len(found) < MAX_ENTRIES:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in SKIPPED:
                            pending.append(entry.path)
                    else:
                        status = entry.stat(follow_symlinks=False)
                        found.append((entry.path, status.st_mtime_ns, status.st_size))
        except OSError:
            # Gone while it was looked at: the next look shows the difference.
            continue
    return tuple(found)


def surface(folder: Path) -> tuple[tuple[str, int], ...]:
    """What lies directly in a folder, as (name, modification time in ns; 0 for folders)."""
    try:
        with os.scandir(folder) as entries:
            return tuple(
                (
                    entry.name,
                    0 if entry.is_dir(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_mtime_ns,
                )
                for entry in entries
            )
    except OSError:
        return ()


def is_alive(run_folder: Path) -> bool:
    """Whether something is still to come in a run's folder: its newest attempt has not ended, or none has begun."""
    attempts = [int(name) for name, _ in surface(run_folder / "attempts") if name.isdecimal()]
    return run_folder.is_dir() and not (attempts and (run_folder / f"attempts/{max(attempts)}/exit.json").exists())
