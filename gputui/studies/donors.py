"""Checkpoints that members of a population go on from: chosen whole, and kept where no rotation removes them."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import sqlite3
from pathlib import Path

from gputui.config import PRIVATE_DIR_MODE
from gputui.recovery.checkpoints import validate
from gputui.store import checkpoints
from gputui.studies.pbt import Exploit

log = logging.getLogger(__name__)

PINS = "pins"
"""The folder of links in a study's folder."""
MOST_EXAMINED = 3
"""Checkpoints of a member that are read in search of a whole one."""


def whole_checkpoint(connection: sqlite3.Connection, run_id: str) -> Path | None:
    """The newest checkpoint that the run wrote and whose content is whole. Raises sqlite3.Error."""
    rows = checkpoints.of_run(connection, run_id)
    written = [one for one in rows if one.is_written and one.verdict in ("unexamined", "valid")]
    for one in sorted(written, key=lambda one: one.place, reverse=True)[:MOST_EXAMINED]:
        if validate(Path(one.path)).valid:
            return Path(one.path)
    return None


def pin(folder: Path, exploit: Exploit, milestone: int, path: Path | None) -> Path | None:
    """A link to a donor's checkpoint, with its checksum and its shards, which lie beside it under its name. Its own
    path where none can be made, as on another file system; None where it is gone."""
    if path is None:
        return None
    # The newest of the former ones may still be loading.
    formers = sorted(folder.glob(f"{exploit.number}-from-*"), key=lambda one: one.stat().st_mtime)
    for former in formers[:-1]:
        shutil.rmtree(former, ignore_errors=True)
    pinned = folder / f"{exploit.number}-from-{exploit.donor}-at-{milestone}" / path.name
    try:
        pinned.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        for each in (path, *path.parent.glob(f"{glob.escape(path.stem)}.*")):
            target = pinned.parent / each.name
            if each.is_dir():
                shutil.copytree(each, target, copy_function=os.link, dirs_exist_ok=True)
            elif not target.exists():
                os.link(each, target)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be linked into %s: %s", path, pinned.parent, error)
        return path
    return pinned
