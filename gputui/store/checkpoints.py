"""Rows of the checkpoint ledger (table ``checkpoints``). Its rules are in `gputui.recovery.checkpoint_scan` and
`gputui.recovery.checkpoint_ledger`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import astuple, replace

if TYPE_CHECKING:
    import sqlite3

# A file server's clock may be ahead: a file dated this long after an attempt's end may be its own.
AFTER_END_SECONDS = 5.0

# rank0, rank_01, mp_rank_00
_RANK = re.compile(r"(?<![A-Za-z])(ranks?[_=.-]?)(\d+)", re.IGNORECASE)

Origin = Literal["run", "rebuilt", "foreign", "contested", "named"]
Verdict = Literal["unexamined", "valid", "invalid", "doubtful", "cut", "struck"]


class CheckpointRow(Struct, frozen=True):
    """One checkpoint of one run, as of the last scan.

    Attributes:
        attempt: the attempt that wrote it, or may have (contested); for a foreign or named one, the newest attempt when
            it was entered.
        modified_ns, size_bytes: for a folder, of the files in it that each save writes, or of all if it has none.
        step: the newest step in the metrics when it was written, else the one in its name; None is unknown.
        first_seen_at: UTC unix seconds; is_settled: it has stopped growing.
        why: completes "the checkpoint …" for its verdict or origin.
        failed_starts: number of attempts that resumed from it and ended before a step.
        left_by: the attempt that began from an earlier checkpoint; counts once that attempt has worked.
        before_ns: ``modified_ns`` of the previous complete save at this path.
        base_of: the newest attempt that began from it.
    """

    path: str
    attempt: int
    origin: Origin
    modified_ns: int
    size_bytes: int | None
    step: int | None
    first_seen_at: float
    is_settled: bool = False
    verdict: Verdict = "unexamined"
    why: str = ""
    failed_starts: int = 0
    left_by: int | None = None
    before_ns: int | None = None
    base_of: int | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def modified_at(self) -> float:
        """UTC unix seconds."""
        return self.modified_ns / 1e9

    @property
    def stamp(self) -> tuple[int, int | None]:
        """Time and size, which a rename preserves."""
        return (self.modified_ns, self.size_bytes)

    @property
    def is_written(self) -> bool:
        """Whether an attempt of this run wrote it."""
        return self.origin in ("run", "rebuilt")

    @property
    def may_be_foreign(self) -> bool:
        """Whether another run may have written it."""
        return self.origin in ("foreign", "contested")

    @property
    def write_order(self) -> tuple[int, bool, int, str]:
        """Sort key for the order of writing, independent of clock changes between attempts."""
        return (self.attempt, not self.is_written, self.modified_ns, self.path)

    @property
    def name_of_save(self) -> str:
        """The path without a rank's number, which is the same for the files that the ranks write in one save."""
        return _RANK.sub(r"\1#", self.path)

    @property
    def ranks(self) -> tuple[str, ...]:
        """The numbers of ranks in the path."""
        return tuple(number for _, number in _RANK.findall(self.path))

    def is_with(self, other: CheckpointRow) -> bool:
        """Whether the ranks of one attempt wrote both in the same place, so that neither is whole without the other."""
        return self.attempt == other.attempt and self.name_of_save == other.name_of_save

    def is_later_than(self, other: CheckpointRow) -> bool:
        """Whether it was written after the other one. Files of one moment are copies, or parts of one save."""
        return self.write_order[:-1] > other.write_order[:-1] and not self.is_with(other)


class Above(Struct, frozen=True):
    """A run whose checkpoint folder contains this run's ``folder``, at the relative path ``inside``. ``pattern`` is
    that run's glob, relative to its own folder."""

    folder: str
    inside: str
    pattern: str

    def matches(self, path: str) -> bool:
        own = PurePath(path)
        if not own.is_relative_to(self.folder):
            return False
        return _matches(PurePath(self.inside, own.relative_to(self.folder)).parts, PurePath(self.pattern).parts)


class Neighbour(Struct, frozen=True):
    """An attempt of another run in the same checkpoint folder, in a subfolder (``below``), or in a parent folder
    (``above``). ``ended_at`` is None while it lives."""

    run_id: str
    begun_at: float
    ended_at: float | None
    below: str | None = None
    above: Above | None = None

    def may_have_written(self, path: str) -> bool:
        if self.above is not None:
            return self.above.matches(path)
        return self.below is None or path.startswith(f"{self.below}/")

    def in_folder(self, folder: str, real: str) -> Neighbour:
        """The same where this run's folder, named ``folder`` here, is called ``real``."""
        if self.above is not None:
            return replace(self, above=replace(self.above, folder=real))
        if self.below is not None:
            return replace(self, below=f"{real.rstrip('/')}{self.below.removeprefix(folder.rstrip('/'))}")
        return self


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob; ``**`` matches any number of parts."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[count:], pattern[1:]) for count in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


_COLUMNS = (
    "path, attempt, origin, modified_ns, size_bytes, step, first_seen_at, is_settled, verdict, why, failed_starts, "
    "left_by, before_ns, base_of"
)


def of_run(connection: sqlite3.Connection, run_id: str) -> list[CheckpointRow]:
    """The ledger of a run, unordered."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM checkpoints WHERE run_id = ?", (run_id,)).fetchall()  # noqa: S608
    return [replace(CheckpointRow(*row), is_settled=bool(row[7])) for row in rows]


def former(connection: sqlite3.Connection, run_id: str, at: float) -> list[tuple[Any, ...]]:
    """The path, attempt (None if unknown), step, size and time of each checkpoint that was there at a past time (UTC
    unix seconds) and is no more."""
    return connection.execute(
        "SELECT path, attempt, step, size_bytes, modified_at FROM former_checkpoints "
        "WHERE run_id = ?1 AND modified_at <= ?2 AND gone_at > ?2 ORDER BY modified_at",
        (run_id, at),
    ).fetchall()


def save(
    connection: sqlite3.Connection,
    run_id: str,
    before: Sequence[CheckpointRow],
    after: Sequence[CheckpointRow],
    now: float,
) -> None:
    """Write the changed rows, and keep what is gone or was written again. Works inside the caller's transaction."""
    former = {row.path: row for row in before}
    changed = [row for row in after if former.get(row.path) != row]
    gone = former.keys() - {row.path for row in after}
    stamps = {row.stamp for row in after}
    connection.executemany(
        "INSERT OR REPLACE INTO former_checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (run_id, row.path, row.attempt if row.is_written else None, row.step, row.size_bytes, row.modified_at, now)
            for row in before
            if row.stamp not in stamps and (row.is_settled or row.path in gone)
        ],
    )
    marks = ", ".join("?" * 15)
    connection.executemany(
        f"INSERT OR REPLACE INTO checkpoints (run_id, {_COLUMNS}) VALUES ({marks})",  # noqa: S608 - names only
        [(run_id, *astuple(row)) for row in changed],
    )
    connection.executemany("DELETE FROM checkpoints WHERE run_id = ? AND path = ?", [(run_id, path) for path in gone])


def attempts_before_ledger(connection: sqlite3.Connection, run_id: str) -> frozenset[int]:
    """The attempts of a run that are older than the ledger."""
    rows = connection.execute("SELECT number FROM attempts WHERE run_id = ? AND checkpoint_folder IS NULL", (run_id,))
    return frozenset(row[0] for row in rows.fetchall())


def step_of(connection: sqlite3.Connection, run_id: str, path: str | None) -> int | None:
    """The step of one entry, None if it is unknown or there is no such entry."""
    row = connection.execute("SELECT step FROM checkpoints WHERE run_id = ? AND path = ?", (run_id, path)).fetchone()
    return None if row is None else row[0]


def folders(connection: sqlite3.Connection, run_id: str, folder: str) -> set[str]:
    """All known paths of a run's checkpoint folder: ``folder`` from its profile, and those stored with its attempts."""
    rows = connection.execute(
        "SELECT DISTINCT checkpoint_folder FROM attempts WHERE run_id = ? AND checkpoint_folder IS NOT NULL", (run_id,)
    )
    return {folder, *(row[0] for row in rows)}


def neighbours(connection: sqlite3.Connection, run_id: str, folder: str, since: float) -> list[Neighbour]:
    """Attempts of other runs that may have written into a folder or its subfolders since a time (UTC unix seconds). It
    includes removed runs, except those whose folder is a parent of this one."""
    neighbours = []
    for name in sorted(folders(connection, run_id, folder)):
        # The range of all paths that begin with the name and a slash.
        first, after = f"{name.rstrip('/')}/", f"{name.rstrip('/')}0"
        rows = connection.execute(
            "SELECT run_id, created_at, ended_at, checkpoint_folder FROM attempts "
            "WHERE (checkpoint_folder = ?1 OR (checkpoint_folder >= ?4 AND checkpoint_folder < ?5)) AND run_id != ?2 "
            "AND (ended_at IS NULL OR ended_at >= ?3) "
            "UNION ALL SELECT run_id, begun_at, ended_at, checkpoint_folder FROM former_neighbours "
            "WHERE (checkpoint_folder = ?1 OR (checkpoint_folder >= ?4 AND checkpoint_folder < ?5)) "
            "AND ended_at >= ?3",
            (name, run_id, since, first, after),
        )
        for other, begun_at, ended_at, checkpoint_folder in rows:
            below = None if checkpoint_folder == name else f"{folder.rstrip('/')}/{checkpoint_folder[len(first) :]}"
            neighbours.append(Neighbour(other, begun_at, ended_at, below))
        above = [str(parent) for parent in PurePath(name).parents]
        rows = connection.execute(
            "SELECT run_id, a.created_at, a.ended_at, a.checkpoint_folder, r.spec ->> '$.checkpoints.pattern' "  # noqa: S608 - marks only
            "FROM attempts AS a JOIN runs AS r USING (run_id) "
            f"WHERE a.checkpoint_folder IN ({', '.join('?' * len(above))}) AND run_id != ? "
            "AND (a.ended_at IS NULL OR a.ended_at >= ?) "
            "AND iif(json_valid(r.spec), instr(r.spec ->> '$.checkpoints.pattern', '/'), 0)",
            (*above, run_id, since),
        )
        for other, begun_at, ended_at, checkpoint_folder, pattern in rows:
            inside = str(PurePath(name).relative_to(checkpoint_folder))
            neighbours.append(Neighbour(other, begun_at, ended_at, above=Above(folder, inside, pattern)))
    return neighbours


_SHARES = (
    "({other}.checkpoint_folder = {own}.checkpoint_folder OR substr({own}.checkpoint_folder, 1, "
    "length(rtrim({other}.checkpoint_folder, '/')) + 1) = rtrim({other}.checkpoint_folder, '/') || '/')"
)
"""SQL: whether the other attempt's folder is the same or a parent."""


def forget_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Before a run is removed, keep what other runs need to know about its attempts. Works inside the caller's
    transaction."""
    connection.execute(
        "INSERT OR IGNORE INTO former_neighbours "  # noqa: S608 - names only
        "SELECT a.checkpoint_folder, a.run_id, a.created_at, a.ended_at FROM attempts AS a "
        "WHERE a.run_id = ? AND a.checkpoint_folder IS NOT NULL AND a.ended_at IS NOT NULL AND EXISTS "
        f"(SELECT 1 FROM attempts AS o WHERE {_SHARES.format(own='a', other='o')} AND o.run_id != a.run_id "
        f"AND o.created_at <= a.ended_at + {AFTER_END_SECONDS} "
        f"AND (o.ended_at IS NULL OR o.ended_at + {AFTER_END_SECONDS} >= a.created_at))",
        (run_id,),
    )
    # Entries without an attempt of the same time in the folder are obsolete.
    connection.execute(
        "DELETE FROM former_neighbours AS f WHERE NOT EXISTS (SELECT 1 FROM attempts AS a "  # noqa: S608 - names only
        f"WHERE {_SHARES.format(own='f', other='a')} AND a.run_id NOT IN (f.run_id, ?) "
        f"AND a.created_at <= f.ended_at + {AFTER_END_SECONDS} "
        f"AND (a.ended_at IS NULL OR a.ended_at + {AFTER_END_SECONDS} >= f.begun_at))",
        (run_id,),
    )


def unplaced(connection: sqlite3.Connection, run_id: str, since: float) -> list[tuple[Neighbour, str]]:
    """Like `neighbours`, but for attempts without a stored folder (older than the ledger, or rebuilt), each with its
    run's specification as text. Runs whose checkpoints are in their own folder are left out."""
    rows = connection.execute(
        "SELECT run_id, a.created_at, a.ended_at, r.spec FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE a.checkpoint_folder IS NULL AND run_id != ? AND (a.ended_at IS NULL OR a.ended_at >= ?) "
        "AND json_valid(r.spec) AND instr(r.spec ->> '$.checkpoints.directory', '{run_dir}') = 0",
        (run_id, since),
    )
    return [(Neighbour(*row[:3]), row[3]) for row in rows.fetchall()]


def note_folder(connection: sqlite3.Connection, run_id: str, number: int, folder: str) -> None:
    """Store an attempt's checkpoint folder as in its profile."""
    connection.execute(
        "UPDATE attempts SET checkpoint_folder = ? WHERE run_id = ? AND number = ? AND checkpoint_folder IS NULL",
        (folder, run_id, number),
    )


def note_real_folder(connection: sqlite3.Connection, run_id: str, number: int, folder: str) -> bool:
    """Store the real path of an attempt's checkpoint folder, by which runs are compared; False if it was known."""
    cursor = connection.execute(
        "UPDATE attempts SET checkpoint_folder = ?1 WHERE run_id = ?2 AND number = ?3 AND checkpoint_folder IS NOT ?1",
        (folder, run_id, number),
    )
    return cursor.rowcount > 0
