"""Removal of a run. Its row is deleted in the transaction of the command's answer, its metrics lines, which may be
millions, in slices, and its folder by a job.

What is left to delete is known from the store and the folder ``removed`` alone (sources of metrics without a run, and
folders whose run is gone), so that the successor of a killed agent continues.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.slices import TURN_SECONDS, SliceSize
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec

log = logging.getLogger(__name__)

FOLDER_SECONDS = 3600.0
# With less free disk space, slices are small and must not let the write-ahead log grow: recording needs the rest.
ROOM_BYTES = 8 << 20
# With less than this, nothing is deleted.
LEAST_ROOM_BYTES = 1 << 20
_FEW_ROWS = 100
_LINES = ("metrics", "metric_stretches", "rejected_lines")
_BLOCKS = ("metric_envelopes", "line_marks")


class RemovedFolder(Struct, frozen=True):
    """A run's folder that was moved from ``origin`` to ``path``, where it is deleted."""

    origin: Path
    path: Path

    def restore(self) -> None:
        """Move it back, because its run was not removed."""
        try:
            self.path.rename(self.origin)
        except OSError as error:
            log.warning("%s cannot be put back, the next agent tries again: %s", self.path, error)


def move_to_removed(workspace: Workspace, run_id: str) -> RemovedFolder | None:
    """Move a run's folder to ``removed``; None if there is none. Raises OSError with nothing changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    removed = workspace.state / "removed"
    removed.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := removed / f"{run_id}.{number}").exists():
        number += 1
    folder.rename(target)
    return RemovedFolder(folder, target)


@dataclass(slots=True)
class Removal:
    """All removals of one state directory."""

    context: AgentContext
    # By table: a row of one takes a hundred times as long as one of another.
    sizes: dict[str, SliceSize] = field(init=False)
    # Nothing is deleted while the disk is full.
    is_disk_full: bool = False

    def __post_init__(self) -> None:
        self.sizes = {
            table: SliceSize(self.context.monotonic, _FEW_ROWS, _FEW_ROWS, 50_000) for table in (*_LINES, *_BLOCKS)
        }

    def begin(self) -> None:
        """Delete the folders that a former agent left. One whose run still exists is restored, because its removal was
        not completed."""
        removed = self.context.workspace.state / "removed"
        for path in list(removed.iterdir()) if removed.is_dir() else []:
            origin = self.context.workspace.run_dir(path.name.rpartition(".")[0])
            known = self.context.connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (origin.name,)).fetchone()
            folder = RemovedFolder(origin, path)
            if known is not None and not origin.exists():
                folder.restore()
            else:
                self.delete_folder(folder)

    def delete_folder(self, folder: RemovedFolder) -> None:
        """Delete a folder in a job: large checkpoints take minutes."""
        self.context.jobs.start(
            f"remove {folder.origin.name}",
            partial(_delete, folder.path, self.context.executors),
            deadline_seconds=FOLDER_SECONDS,
        )

    def has_lines_left(self) -> bool:
        """Whether lines are left to delete and the disk has room for that."""
        return not self.is_disk_full and self._next_source() is not None

    def turn(self) -> bool:
        """Delete lines of removed runs for a few milliseconds; True if more remain. Raises sqlite3.Error."""
        deadline = self.context.monotonic() + TURN_SECONDS
        while (source_id := self._next_source()) is not None:
            if not self._has_room():
                return False
            self._delete_slice(source_id)
            if self.context.monotonic() >= deadline:
                return True
        self.is_disk_full = False
        return False

    def _next_source(self) -> int | None:
        row = self.context.connection.execute(
            "SELECT source_id FROM metric_sources WHERE run_id IS NULL LIMIT 1"
        ).fetchone()
        return None if row is None else int(row[0])

    def _delete_slice(self, source_id: int) -> None:
        """Delete a slice of a source's rows in the first table that has some; without rows, delete the source."""
        connection = self.context.connection
        for table, size in self.sizes.items():
            found = connection.execute(f"SELECT 1 FROM {table} WHERE source_id = ? LIMIT 1", (source_id,)).fetchone()  # noqa: S608
            if found is not None:
                delete = _delete_lines if table in _LINES else _delete_blocks
                size.run(partial(delete, connection, table, source_id))
                return
        connection.execute("DELETE FROM metric_sources WHERE source_id = ?", (source_id,))

    def _has_room(self) -> bool:
        """Whether a slice can be written without taking disk space that recording needs."""
        log_file = self.context.workspace.database.with_name(self.context.workspace.database.name + "-wal")
        log_bytes = log_file.stat().st_size if log_file.exists() else 0
        free = shutil.disk_usage(self.context.workspace.state).free
        self.is_disk_full = False
        if free >= ROOM_BYTES:
            return True
        # After a full checkpoint of the write-ahead log, the next transaction reuses its space.
        for size in self.sizes.values():
            size.count = _FEW_ROWS
        is_busy, frames, moved = self.context.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self.is_disk_full = bool(is_busy) or frames != moved or free + log_bytes < LEAST_ROOM_BYTES
        return not self.is_disk_full


def _delete_lines(connection: sqlite3.Connection, table: str, source_id: int, count: int) -> None:
    """Delete the first ``count`` rows of a source from a table that is keyed by the position of a line."""
    row = connection.execute(
        f"SELECT generation, byte_offset FROM {table} WHERE source_id = ? "  # noqa: S608
        "ORDER BY generation, byte_offset LIMIT 1 OFFSET ?",
        (source_id, count - 1),
    ).fetchone()
    if row is None:
        connection.execute(f"DELETE FROM {table} WHERE source_id = ?", (source_id,))  # noqa: S608
        return
    connection.execute(
        f"DELETE FROM {table} WHERE source_id = ? AND (generation, byte_offset) <= (?, ?)",  # noqa: S608
        (source_id, *row),
    )


def _delete_blocks(connection: sqlite3.Connection, table: str, source_id: int, count: int) -> None:
    """Delete ``count`` rows of a source from another table."""
    connection.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE source_id = ? LIMIT ?)",  # noqa: S608
        (source_id, count),
    )


def _delete(folder: Path, executors: Executors) -> None:
    """Delete a run's folder, and its files on its target. If the target cannot be reached, the records with its address
    stay here. A link, or a file in the folder's place, is unlinked."""
    if folder.is_symlink() or not folder.is_dir():
        try:
            folder.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)
        return
    try:
        target = read_spec(folder / SPEC_FILE).target
    except SpecError:
        target = None
    try:
        if target is not None and target.get("kind") in EXECUTORS:
            executors.of(target).clear(folder, target)
    except OSError as error:
        log.warning("%s is not removed where it ran, the next agent tries again: %s", folder.name, error)
        for path in folder.rglob("*"):
            if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
                with suppress(OSError):
                    path.unlink()
        return
    except Exception:
        log.exception("%s: the records of what is elsewhere are damaged; remove that by hand", folder.name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)
