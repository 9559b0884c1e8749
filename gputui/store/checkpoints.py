"""Rows of the checkpoint ledger; its rules are in `gputui.recovery.checkpoints.ledger`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from gputui.store.rows import insert, records, update

# Checkpoints that are gone are recognized if they come back, but no more than these.
MOST_GONE = 1000

# rank0, rank_01, mp_rank_00
_RANK = re.compile(r"(?<![A-Za-z])(ranks?[_=.-]?)(\d+)", re.IGNORECASE)

Origin = Literal["run", "foreign", "contested", "named"]
"""``run``: it appeared while an attempt of the run lived; ``foreign``: while none did; ``contested``:
while one of another run lived too; ``named``: a person chose it."""

Verdict = Literal["unexamined", "valid", "invalid", "doubtful", "cut", "left", "struck"]
"""``doubtful``: attempts that resumed from it made no step; ``cut``: the end of its attempt may have
cut its save short; ``left``: by a rollback or a person's choice; ``struck``: never to be used."""


class CheckpointRow(Struct, frozen=True):
    """One place of one checkpoint of a run. Copies of a checkpoint have equal rows but for their
    place.

    Attributes:
        place: the place in the order in which the run's checkpoints were seen first; the column `seen`.
        content: its identity, in the forms of `recovery.checkpoints.content`.
        stamp: changes when the file is written.
        attempt: the attempt in whose life it appeared; of a foreign or named one, the newest then.
        unseen_at: UTC unix seconds of the last scan without it.
        seen_at: UTC unix seconds of the first scan with it.
        modified_at: its time on the disk, for people.
        saved_at: ``modified_at``, None unless that can be true.
        step: from its name where the metrics allow it, else the metrics' newest; None is unknown.
        is_settled: it has stopped growing.
        is_rewrite: its attempt wrote over another one there.
        why: completes "the checkpoint …" for its verdict or origin.
        failed_starts: number of attempts that resumed from it and ended before a step.
        left_by: the attempt that began from an earlier one; counts once that attempt has worked.
        base_of: the newest attempt that began from it.
        gone_at: when it was seen to be gone; None while it is there.
    """

    path: str
    place: int
    content: str
    stamp: str
    attempt: int
    origin: Origin
    unseen_at: float
    seen_at: float
    modified_at: float
    saved_at: float | None
    step: int | None
    size_bytes: int | None
    is_settled: bool = False
    is_rewrite: bool = False
    verdict: Verdict = "unexamined"
    why: str = ""
    failed_starts: int = 0
    left_by: int | None = None
    base_of: int | None = None
    gone_at: float | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_written(self) -> bool:
        """True if an attempt of this run wrote it."""
        return self.origin == "run"

    @property
    def writer(self) -> int | None:
        """The attempt of this run that wrote it; None if none did."""
        if self.is_written:
            return self.attempt
        return None

    @property
    def written_at(self) -> float:
        """The time of the file if that can be true, else that of the first scan with it (UTC unix seconds)."""
        if self.saved_at is None:
            return self.seen_at
        return self.saved_at

    @property
    def name_of_save(self) -> str:
        """The path without a rank's number: the same for all files of one save."""
        return _RANK.sub(r"\1#", self.path)

    @property
    def ranks(self) -> tuple[str, ...]:
        """The numbers of ranks in the path."""
        return tuple(number for _, number in _RANK.findall(self.path))

    def is_same_save_as(self, second: CheckpointRow) -> bool:
        """Return whether ranks of one attempt wrote both as one save, whole only together."""
        return self.attempt == second.attempt and self.name_of_save == second.name_of_save

    def is_later_than(self, second: CheckpointRow) -> bool:
        """Return whether it was seen after the other one, and is no part of the same save."""
        return self.place > second.place and not self.is_same_save_as(second)


class Neighbour(Struct, frozen=True):
    """The checkpoint folder of an attempt of another run, and that run's pattern there."""

    run_id: str
    folder: str
    pattern: str

    def may_have_written(self, path: str, folder: str) -> bool:
        """Return whether it may have written what appeared at a path below ``folder``."""
        is_above = self.folder != folder and Path(folder).is_relative_to(self.folder)
        return Path(path).is_relative_to(self.folder) and (not is_above or "/" in self.pattern)


def of_run(connection: sqlite3.Connection, run_id: str, *, with_gone: bool = False) -> list[CheckpointRow]:
    """The ledger of a run, as seen, without or with the newest of those that are gone."""
    query = "SELECT *, seen AS place FROM checkpoints WHERE run_id = ? AND gone_at IS"
    rows = records(connection, CheckpointRow, f"{query} NULL", run_id)
    if with_gone:
        gone = f"{query} NOT NULL ORDER BY seen DESC LIMIT {MOST_GONE}"
        rows += records(connection, CheckpointRow, gone, run_id)
    return sorted(rows, key=lambda row: (row.place, row.path))


def gone_since(connection: sqlite3.Connection, run_id: str, at: float) -> list[tuple[Any, ...]]:
    """The path, attempt (None if unknown), step, size and time of each checkpoint that was there at
    a past time (UTC unix seconds) and is no more."""
    return connection.execute(
        "SELECT path, iif(origin = 'run', attempt, NULL), step, size_bytes, modified_at FROM checkpoints "
        "WHERE run_id = ?1 AND seen_at <= ?2 AND gone_at > ?2 ORDER BY seen",
        (run_id, at),
    ).fetchall()


def save(
    connection: sqlite3.Connection, run_id: str, before: Sequence[CheckpointRow], after: Sequence[CheckpointRow]
) -> None:
    """Write the changed rows. Works inside the caller's transaction."""
    former = {(row.path, row.place): row for row in before}
    changed = [row for row in after if former.get((row.path, row.place)) != row]
    # A place is free once what was there is marked as gone.
    for row in sorted(changed, key=lambda row: row.gone_at is None):
        values = asdict(row)
        insert(connection, "checkpoints", "REPLACE", run_id=run_id, seen=values.pop("place"), **values)


def step_of(connection: sqlite3.Connection, run_id: str, path: str | None) -> int | None:
    """The step of one entry, None if it is unknown or there is no such entry."""
    row = connection.execute(
        "SELECT step FROM checkpoints WHERE run_id = ? AND path = ? AND gone_at IS NULL", (run_id, path)
    ).fetchone()
    if row is None:
        return None
    step: int | None = row[0]
    return step


def neighbours(connection: sqlite3.Connection, run_id: str, since: float) -> list[Neighbour]:
    """The checkpoint folders of other runs' attempts that live, or lived since a time."""
    return records(
        connection,
        Neighbour,
        "SELECT DISTINCT a.run_id, checkpoint_folder AS folder, iif(json_valid(r.spec), "
        "coalesce(r.spec ->> '$.checkpoints.pattern', 'auto'), '**/*') AS pattern "
        "FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE checkpoint_folder IS NOT NULL AND a.run_id != ? AND (a.ended_at IS NULL OR a.ended_at >= ?)",
        run_id,
        since,
    )


def note_scan(connection: sqlite3.Connection, run_id: str, number: int, folder: str | None, at: float) -> None:
    """Store the real path of an attempt's checkpoint folder, if known, and the scan's time."""
    values: dict[str, Any] = {"scanned_at": at}
    if folder is not None:
        values["checkpoint_folder"] = folder
    update(connection, "attempts", {"run_id": run_id, "number": number}, **values)


def scanned_at(connection: sqlite3.Connection, run_id: str, number: int) -> float | None:
    """The time at which the checkpoint folder was last listed during an attempt; None if not
    yet."""
    query = "SELECT scanned_at FROM attempts WHERE run_id = ? AND number = ?"
    row = connection.execute(query, (run_id, number)).fetchone()
    if row is None:
        return None
    moment: float | None = row[0]
    return moment
