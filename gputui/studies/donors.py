"""Checkpoints that members of a population continue from: checked, and pinned where no rotation removes them."""

from __future__ import annotations

import fcntl
import glob
import logging
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gputui.core.config import PRIVATE_DIR_MODE, open_regular
from gputui.recovery.checkpoints.files import measured
from gputui.recovery.checkpoints.formats import validate
from gputui.recovery.checkpoints.resumable import newest_first
from gputui.runs.checkpoint_names import explicit_step
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.studies.pbt import Exploit

log = logging.getLogger(__name__)

PINS = "pins"
"""The folder of pinned checkpoints in a study's folder."""
MAX_EXAMINED = 3
"""Checkpoints of a member that are read to find a valid one."""
# ioctl_ficlone(2): a copy that shares its blocks with the original until one of them is written.
_FICLONE = 0x40049409


class PinnedCheckpoint(NamedTuple):
    """A pinned checkpoint, and its `file_version` when it was pinned."""

    path: Path
    version: list[int] | None


def newest_valid_checkpoint(
    connection: sqlite3.Connection, run_id: str, most_steps: float | None = None
) -> CheckpointRow | None:
    """The run's newest valid checkpoint after at most ``most_steps`` steps. Raises sqlite3.Error."""
    rows = checkpoints.of_run(connection, run_id)
    written = [row for row in rows if row.is_written and row.verdict in ("unexamined", "valid")]
    if most_steps is not None:
        written = [row for row in written if (steps := _steps_of(row)) is not None and steps <= most_steps]
    for row in newest_first(written)[:MAX_EXAMINED]:
        if validate(Path(row.path)).valid:
            return row
    return None


def step_of(checkpoint: CheckpointRow) -> int | None:
    """The step in a checkpoint's name, else the step that the script reports."""
    named = explicit_step(checkpoint.name)
    return checkpoint.step if named is None else named


def _steps_of(checkpoint: CheckpointRow) -> int | None:
    """The number of steps before a checkpoint: scripts count steps from 0, names from 1."""
    named = explicit_step(checkpoint.name)
    return named if named is not None or checkpoint.step is None else checkpoint.step + 1


def pin(folder: Path, exploit: Exploit, milestone: int, path: Path) -> PinnedCheckpoint | None:
    """Copy a donor's checkpoint, with its checksum and shards, into ``folder``; None if it is gone or no longer valid.

    A file with its step in the name is written once, so it is linked. Any other may be overwritten or replaced, so it
    is copied. If nothing can be written, the result is the original path.
    """
    # A member may still load the newest of the earlier pins.
    earlier = sorted(folder.glob(f"{exploit.number}-from-*"), key=lambda pin: pin.stat().st_mtime)
    for former in earlier[:-1]:
        shutil.rmtree(former, ignore_errors=True)
    pinned = folder / f"{exploit.number}-from-{exploit.donor}-at-{milestone}" / path.name
    copy = partial(_copy, may_link=explicit_step(path.name) is not None)
    try:
        pinned.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        # A compressed checkpoint step_1.pt.gz has its shards in step_1.shards.
        stem = Path(path.name.removesuffix(".gz")).stem
        for file in (path, *path.parent.glob(f"{glob.escape(stem)}.*")):
            target = pinned.parent / file.name
            if file.is_dir():
                shutil.copytree(file, target, copy_function=copy, dirs_exist_ok=True)
            elif not target.exists():
                copy(str(file), str(target))
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be pinned in %s: %s", path, pinned.parent, error)
        return PinnedCheckpoint(path, file_version(path))
    # The script may have overwritten the file during the copy.
    return PinnedCheckpoint(pinned, file_version(pinned)) if validate(pinned).valid else None


def file_version(path: Path) -> list[int] | None:
    """The newest modification (ns) and the size in bytes, which change if a checkpoint is written again; None if it is
    gone."""
    file = measured(path)
    return None if file is None else [file.modified_ns, file.size_bytes or 0]


def remove_pins(study_folder: Path) -> None:
    """Remove all pins of a study that is over."""
    shutil.rmtree(study_folder / PINS, ignore_errors=True)


def _copy(source: str, target: str, *, may_link: bool) -> None:
    """Copy or link one file of a checkpoint, completely or not at all. Raises OSError."""
    original, unfinished = Path(source), Path(f"{target}.part")
    unfinished.unlink(missing_ok=True)
    if not _clone(original, unfinished):
        try:
            if may_link:
                unfinished.hardlink_to(original)
        except FileNotFoundError:
            raise
        except OSError:
            may_link = False  # another file system
        if not may_link:
            shutil.copy2(original, unfinished)
    unfinished.replace(target)


def _clone(source: Path, target: Path) -> bool:
    """Copy a file by sharing its blocks. Returns whether the file system supports this. Raises OSError if the file is
    gone or the disk is full."""
    with open_regular(source) as original, target.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
        except OSError:
            target.unlink()
            return False
    shutil.copystat(source, target)
    return True
