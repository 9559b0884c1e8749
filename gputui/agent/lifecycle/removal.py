"""Removing a run. Its row and the few that hang on it go at once, in the transaction of the answer. The lines of its
metrics, which may be millions, are deleted in slices while the agent does all else; its folder is deleted by a job.

What is left to delete is told by the store and by the folder ``removed`` alone, so that an agent that was killed is
followed by one that goes on: sources of metrics without a run, and folders whose run is gone.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.slices import TURN_SECONDS, SliceSize
from gputui.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.repository import transaction

log = logging.getLogger(__name__)

FOLDER_SECONDS = 3600.0
# With less room on the disk only small slices are deleted, and the write-ahead log does not grow: what is recorded of
# others needs the rest. With less than the second nothing is.
ROOM_BYTES = 8 << 20
LEAST_ROOM_BYTES = 1 << 20
_FEW_ROWS = 100


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
    """Move a run's folder out of the runs; None where there is none. Raises OSError with nothing changed."""
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
    size: SliceSize = field(init=False)
    # Nothing is deleted while the disk has no room for it.
    is_cramped: bool = False

    def __post_init__(self) -> None:
        self.size = SliceSize(self.context.monotonic, 1000, _FEW_ROWS, 50_000)

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
            f"remove {away.origin.name}", partial(_delete, away.place), deadline_seconds=FOLDER_SECONDS
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
            self.size.run(partial(self._delete_slice, source_id))
            if self.context.monotonic() >= deadline:
                return True
        self.is_cramped = False
        return False

    def _next_source(self) -> int | None:
        row = self.context.connection.execute(
            "SELECT source_id FROM metric_sources WHERE run_id IS NULL LIMIT 1"
        ).fetchone()
        return None if row is None else int(row[0])

    def _delete_slice(self, source_id: int, count: int) -> None:
        """Delete so many rows that belong to a source, and the source itself when there are no more."""
        with transaction(self.context.connection) as connection:
            left = count
            for table in ("metrics", "metric_stretches", "rejected_lines"):
                left -= _delete_lines(connection, table, source_id, left)
                if left <= 0:
                    return
            for table in ("metric_envelopes", "line_marks"):
                left -= connection.execute(
                    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE source_id = ? LIMIT ?)",  # noqa: S608
                    (source_id, left),
                ).rowcount
                if left <= 0:
                    return
            if left > 0:
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
        self.size.count = _FEW_ROWS
        is_busy, frames, moved = self.context.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self.is_cramped = bool(is_busy) or frames != moved or free + log_bytes < LEAST_ROOM_BYTES
        return not self.is_cramped


def _delete_lines(connection: sqlite3.Connection, table: str, source_id: int, count: int) -> int:
    """Delete the first ``count`` rows of a source from a table that is keyed by the place of a line."""
    row = connection.execute(
        f"SELECT generation, byte_offset FROM {table} WHERE source_id = ? "  # noqa: S608
        "ORDER BY generation, byte_offset LIMIT 1 OFFSET ?",
        (source_id, count - 1),
    ).fetchone()
    if row is None:
        return connection.execute(f"DELETE FROM {table} WHERE source_id = ?", (source_id,)).rowcount  # noqa: S608
    return connection.execute(
        f"DELETE FROM {table} WHERE source_id = ? AND (generation, byte_offset) <= (?, ?)",  # noqa: S608
        (source_id, *row),
    ).rowcount


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)
