"""Removing a run. Its row and the few that hang on it go at once, in the transaction of the answer. The lines of its
metrics, which may be millions, are deleted in slices while the agent does all else; its folder is deleted by a job.

Only the store and the folder ``removed`` say what is left to delete, so that an agent that was killed is
followed by one that continues: sources of metrics without a run, and folders whose run is gone.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.slices import TURN_SECONDS, SliceSize
from gputui.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec

log = logging.getLogger(__name__)

FOLDER_SECONDS = 3600.0
# With less room on the disk only small slices are deleted, and the write-ahead log does not grow: what is recorded of
# others needs the rest. With less than the second nothing is.
ROOM_BYTES = 8 << 20
LEAST_ROOM_BYTES = 1 << 20
_FEW_ROWS = 100
_LINES = ("metrics", "metric_stretches", "rejected_lines")
_BLOCKS = ("metric_envelopes", "line_marks")


@dataclass(frozen=True, slots=True)
class PutAway:
    """A run's folder that was moved out of the way."""

    origin: Path
    place: Path

    def restore(self) -> None:
        """Put it back: its run was not removed."""
        try:
            self.place.rename(self.origin)
        except OSError as error:
            log.warning("%s cannot be put back, the next agent tries again: %s", self.place, error)


def put_away(workspace: Workspace, run_id: str) -> PutAway | None:
    """Move a run's folder out of the runs; None if there is none. Raises OSError with nothing changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    kept = workspace.state / "removed"
    kept.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := kept / f"{run_id}.{number}").exists():
        number += 1
    folder.rename(target)
    return PutAway(folder, target)


@dataclass(slots=True)
class Removal:
    """All removals of one state directory."""

    context: AgentContext
    # A row of one table takes a hundred times as long as one of another.
    sizes: dict[str, SliceSize] = field(init=False)
    # Nothing is deleted while the disk has no room for it.
    is_cramped: bool = False

    def __post_init__(self) -> None:
        self.sizes = {
            table: SliceSize(self.context.monotonic, _FEW_ROWS, _FEW_ROWS, 50_000) for table in (*_LINES, *_BLOCKS)
        }

    def go_on(self) -> None:
        """After the start: delete the folders that a former agent did not get to. One whose run is still there was put
        away for a removal that never happened, and is put back."""
        kept = self.context.workspace.state / "removed"
        for place in list(kept.iterdir()) if kept.is_dir() else []:
            origin = self.context.workspace.run_dir(place.name.rpartition(".")[0])
            known = self.context.connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (origin.name,)).fetchone()
            away = PutAway(origin, place)
            if known is not None and not origin.exists():
                away.restore()
            else:
                self.delete_folder(away)

    def delete_folder(self, away: PutAway) -> None:
        """Delete a folder that was put away, in a job: that may take minutes where checkpoints are large."""
        self.context.jobs.start(
            f"remove {away.origin.name}",
            partial(_delete, away.place, self.context.executors),
            deadline_seconds=FOLDER_SECONDS,
        )

    def is_owing(self) -> bool:
        """Whether lines are left to delete, and can be."""
        return not self.is_cramped and self._next_source() is not None

    def turn(self) -> bool:
        """Delete lines of removed runs for a few milliseconds; whether there are more. Raises sqlite3.Error."""
        deadline = self.context.monotonic() + TURN_SECONDS
        while (source_id := self._next_source()) is not None:
            if not self._has_room():
                return False
            self._delete_slice(source_id)
            if self.context.monotonic() >= deadline:
                return True
        self.is_cramped = False
        return False

    def _next_source(self) -> int | None:
        row = self.context.connection.execute(
            "SELECT source_id FROM metric_sources WHERE run_id IS NULL LIMIT 1"
        ).fetchone()
        return None if row is None else int(row[0])

    def _delete_slice(self, source_id: int) -> None:
        """Delete rows that belong to a source, of the first table that has any; the source itself when none has."""
        connection = self.context.connection
        for table, size in self.sizes.items():
            found = connection.execute(f"SELECT 1 FROM {table} WHERE source_id = ? LIMIT 1", (source_id,)).fetchone()  # noqa: S608
            if found is not None:
                delete = _delete_lines if table in _LINES else _delete_blocks
                size.run(partial(delete, connection, table, source_id))
                return
        connection.execute("DELETE FROM metric_sources WHERE source_id = ?", (source_id,))

    def _has_room(self) -> bool:
        """Whether a slice can be written without taking what others need."""
        log_file = self.context.workspace.database.with_name(self.context.workspace.database.name + "-wal")
        log_bytes = log_file.stat().st_size if log_file.exists() else 0
        status = os.statvfs(self.context.workspace.state)
        free = status.f_bavail * status.f_frsize
        self.is_cramped = False
        if free >= ROOM_BYTES:
            return True
        # Once all of the log is in the database, the next transaction is written over what the log holds.
        for size in self.sizes.values():
            size.count = _FEW_ROWS
        is_busy, frames, moved = self.context.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self.is_cramped = bool(is_busy) or frames != moved or free + log_bytes < LEAST_ROOM_BYTES
        return not self.is_cramped


def _delete_lines(connection: sqlite3.Connection, table: str, source_id: int, count: int) -> None:
    """Delete the first ``count`` rows of a source from a table that is keyed by the place of a line."""
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
    """Delete a run's folder, and what is elsewhere of it. Where that cannot be reached, its address stays here. Of a
    link, or a file in the folder's place, nothing but that is deleted."""
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
        _keep_records(folder)
        return
    except Exception:
        log.exception("%s: the records of what is elsewhere are damaged; remove that by hand", folder.name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)


def _keep_records(folder: Path) -> None:
    """Delete all that takes room; the small records that say where the rest is stay."""
    for path in folder.rglob("*"):
        if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
            with suppress(OSError):
                path.unlink()
