"""Checkpoints that members of a population go on from: chosen whole, and kept where no rotation removes them."""

from __future__ import annotations

import fcntl
import glob
import logging
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gputui.config import PRIVATE_DIR_MODE
from gputui.recovery.checkpoints import measured, validate
from gputui.regular_files import open_regular
from gputui.runs.checkpoint_names import explicit_step
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.studies.pbt import Exploit

log = logging.getLogger(__name__)

PINS = "pins"
"""The folder of pinned checkpoints in a study's folder."""
MOST_EXAMINED = 3
"""Checkpoints of a member that are read in search of a whole one."""
# ioctl_ficlone(2): a copy that shares its blocks with the original until one of them is written.
_FICLONE = 0x40049409


class PinnedCheckpoint(NamedTuple):
    """A checkpoint that was put aside; ``seen`` is how it was then."""

    path: Path
    seen: list[int] | None


def whole_checkpoint(
    connection: sqlite3.Connection, run_id: str, most_steps: float | None = None
) -> CheckpointRow | None:
    """The newest checkpoint that the run wrote, after at most so many steps, and whose content is whole. Raises
    sqlite3.Error."""
    rows = checkpoints.of_run(connection, run_id)
    written = [one for one in rows if one.is_written and one.verdict in ("unexamined", "valid")]
    if most_steps is not None:
        written = [one for one in written if (steps := _steps_of(one)) is not None and steps <= most_steps]
    for one in sorted(written, key=lambda one: one.place, reverse=True)[:MOST_EXAMINED]:
        if validate(Path(one.path)).valid:
            return one
    return None


def step_of(given: CheckpointRow) -> int | None:
    """The step of a checkpoint as its name has it, else as its script counts."""
    named = explicit_step(given.name)
    return given.step if named is None else named


def _steps_of(given: CheckpointRow) -> int | None:
    """How many steps led to a checkpoint: scripts count those from 0, names from 1."""
    named = explicit_step(given.name)
    return named if named is not None or given.step is None else given.step + 1


def pin(folder: Path, exploit: Exploit, milestone: int, path: Path | None) -> PinnedCheckpoint | None:
    """Put a donor's checkpoint aside, with its checksum and its shards, which lie beside it under its name; None where
    it is gone, or is not whole any more.

    A file whose name has its step is taken to be written once, and is linked. Any other may be written again, into the
    same file or in place of it, and is copied. Its own path is all there is where nothing can be written.
    """
    if path is None:
        return None
    # The newest of the former ones may still be loading.
    formers = sorted(folder.glob(f"{exploit.number}-from-*"), key=lambda one: one.stat().st_mtime)
    for former in formers[:-1]:
        shutil.rmtree(former, ignore_errors=True)
    pinned = folder / f"{exploit.number}-from-{exploit.donor}-at-{milestone}" / path.name
    take = partial(_take, may_link=explicit_step(path.name) is not None)
    try:
        pinned.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        for each in (path, *path.parent.glob(f"{glob.escape(path.stem)}.*")):
            target = pinned.parent / each.name
            if each.is_dir():
                shutil.copytree(each, target, copy_function=take, dirs_exist_ok=True)
            elif not target.exists():
                take(str(each), str(target))
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be put aside in %s: %s", path, pinned.parent, error)
        return PinnedCheckpoint(path, seen(path))
    # While it was copied its script may have begun to write the next one.
    return PinnedCheckpoint(pinned, seen(pinned)) if validate(pinned).valid else None


def seen(path: Path) -> list[int] | None:
    """What tells whether a checkpoint was written again: its newest change (ns) and its size in bytes."""
    found = measured(path)
    return None if found is None else [found.modified_ns, found.size_bytes or 0]


def remove_pins(study_folder: Path) -> None:
    """Remove every pin of a study of which no member goes on."""
    shutil.rmtree(study_folder / PINS, ignore_errors=True)


def _take(source: str, target: str, *, may_link: bool) -> None:
    """One file of a checkpoint, whole or not at all. Raises OSError."""
    given, unfinished = Path(source), Path(f"{target}.part")
    unfinished.unlink(missing_ok=True)
    if not _clone(given, unfinished):
        try:
            if may_link:
                unfinished.hardlink_to(given)
        except FileNotFoundError:
            raise
        except OSError:
            # Another file system.
            may_link = False
        if not may_link:
            shutil.copy2(given, unfinished)
    unfinished.replace(target)


def _clone(source: Path, target: Path) -> bool:
    """Copy a file by sharing its blocks; whether its file system can. Raises OSError where it is gone, or there is no
    room."""
    with open_regular(source) as given, target.open("xb") as taken:
        try:
            fcntl.ioctl(taken.fileno(), _FICLONE, given.fileno())
        except OSError:
            target.unlink()
            return False
    shutil.copystat(source, target)
    return True
