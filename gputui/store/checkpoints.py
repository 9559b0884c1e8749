"""The ledger of checkpoints as rows: see the table ``checkpoints``. What follows from them is decided in
`gputui.recovery.checkpoint_ledger`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import sqlite3

# The clock of a file server may be a little ahead: what is written so long after an attempt's end may be of it.
AFTER_END_SECONDS = 5.0

Origin = Literal["run", "rebuilt", "foreign", "contested", "named"]
Verdict = Literal["unexamined", "valid", "invalid", "doubtful", "cut", "struck"]


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint of one run, as it was last seen.

    Attributes:
        attempt: the attempt that wrote it, or of a contested one may have; of a foreign or named one, the attempt that
            came before it was entered.
        modified_ns, size_bytes: of a folder, the newest change in it and the sum of its files.
        step: the newest step that the metrics had when it was written, else the one in its name; None is unknown.
        first_seen_at: UTC unix seconds; is_settled: it has stopped growing.
        why: completes "the checkpoint …" for its verdict or origin.
        failed_starts: how many attempts resumed from it and ended before a step.
        left_by: the attempt that began from an earlier checkpoint; counts once that attempt has worked.
        before_ns: ``modified_ns`` of what was saved whole there before it was written again.
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

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def modified_at(self) -> float:
        """UTC unix seconds."""
        return self.modified_ns / 1e9

    @property
    def is_written(self) -> bool:
        """An attempt of this run wrote it."""
        return self.origin in ("run", "rebuilt")

    @property
    def may_be_foreign(self) -> bool:
        """It is not known to be of this run."""
        return self.origin in ("foreign", "contested")

    @property
    def place(self) -> tuple[int, bool, int, str]:
        """Its place in the order in which checkpoints were written. A clock that is set back between two attempts
        changes nothing in it."""
        return (self.attempt, not self.is_written, self.modified_ns, self.path)


@dataclass(frozen=True, slots=True)
class Above:
    """How another run's folder has ``folder``, the begin of this run's paths, in it: as ``inside``. Its ``pattern`` is
    a glob below its own."""

    folder: str
    inside: str
    pattern: str

    def matches(self, path: str) -> bool:
        own = PurePath(path)
        if not own.is_relative_to(self.folder):
            return False
        return _matches(PurePath(self.inside, own.relative_to(self.folder)).parts, PurePath(self.pattern).parts)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An attempt of another run in the same checkpoint folder, or in one below it, which is then ``below``: what lies
    there is its own, or in one ``above`` it. ``ended_at`` is None while it lives."""

    run_id: str
    begun_at: float
    ended_at: float | None
    below: str | None = None
    above: Above | None = None

    def may_have_written(self, path: str) -> bool:
        if self.above is not None:
            return self.above.matches(path)
        return self.below is None or path.startswith(f"{self.below}/")


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob, of which ``**`` stands for any number."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[count:], pattern[1:]) for count in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


_COLUMNS = (
    "path, attempt, origin, modified_ns, size_bytes, step, first_seen_at, is_settled, verdict, why, failed_starts, "
    "left_by, before_ns"
)


def of_run(connection: sqlite3.Connection, run_id: str) -> list[CheckpointRow]:
    """The ledger of a run, in no particular order."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM checkpoints WHERE run_id = ?", (run_id,)).fetchall()  # noqa: S608
    return [replace(CheckpointRow(*row), is_settled=bool(row[7])) for row in rows]


def save(
    connection: sqlite3.Connection, run_id: str, before: Sequence[CheckpointRow], after: Sequence[CheckpointRow]
) -> None:
    """Write what differs. Works inside the caller's transaction."""
    former = {row.path: row for row in before}
    changed = [row for row in after if former.get(row.path) != row]
    gone = former.keys() - {row.path for row in after}
    marks = ", ".join("?" * 14)
    connection.executemany(
        f"INSERT OR REPLACE INTO checkpoints (run_id, {_COLUMNS}) VALUES ({marks})",  # noqa: S608 - names only
        [(run_id, *astuple(row)) for row in changed],
    )
    connection.executemany("DELETE FROM checkpoints WHERE run_id = ? AND path = ?", [(run_id, path) for path in gone])


def attempts_before_ledger(connection: sqlite3.Connection, run_id: str) -> frozenset[int]:
    """The attempts of a run that began before there was a ledger."""
    rows = connection.execute("SELECT number FROM attempts WHERE run_id = ? AND checkpoint_folder IS NULL", (run_id,))
    return frozenset(row[0] for row in rows.fetchall())


def step_of(connection: sqlite3.Connection, run_id: str, path: str | None) -> int | None:
    """The step of one entry, None if it is unknown or there is no such entry."""
    row = connection.execute("SELECT step FROM checkpoints WHERE run_id = ? AND path = ?", (run_id, path)).fetchone()
    return None if row is None else row[0]


def folders(connection: sqlite3.Connection, run_id: str, folder: str) -> set[str]:
    """The names of a run's checkpoint folder: as its profile has it, and those that were noted of its attempts."""
    rows = connection.execute(
        "SELECT DISTINCT checkpoint_folder FROM attempts WHERE run_id = ? AND checkpoint_folder IS NOT NULL", (run_id,)
    )
    return {folder, *(row[0] for row in rows)}


def neighbours(connection: sqlite3.Connection, run_id: str, folder: str, since: float) -> list[Neighbour]:
    """The attempts of other runs that may have written into a folder since a moment (UTC unix seconds), or into one
    below it; runs that were removed among them, but for those whose folder is above this one."""
    found = []
    for name in sorted(folders(connection, run_id, folder)):
        # All that begins with the name and a slash lies between these two.
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
        for other, begun_at, ended_at, place in rows:
            below = None if place == name else f"{folder.rstrip('/')}/{place[len(first) :]}"
            found.append(Neighbour(other, begun_at, ended_at, below))
        above = [str(parent) for parent in PurePath(name).parents]
        rows = connection.execute(
            "SELECT run_id, a.created_at, a.ended_at, a.checkpoint_folder, r.spec ->> '$.checkpoints.pattern' "  # noqa: S608 - marks only
            "FROM attempts AS a JOIN runs AS r USING (run_id) "
            f"WHERE a.checkpoint_folder IN ({', '.join('?' * len(above))}) AND run_id != ? "
            "AND (a.ended_at IS NULL OR a.ended_at >= ?) "
            "AND iif(json_valid(r.spec), instr(r.spec ->> '$.checkpoints.pattern', '/'), 0)",
            (*above, run_id, since),
        )
        for other, begun_at, ended_at, place, pattern in rows:
            inside = str(PurePath(name).relative_to(place))
            found.append(Neighbour(other, begun_at, ended_at, above=Above(folder, inside, pattern)))
    return found


_SHARES = (
    "({other}.checkpoint_folder = {own}.checkpoint_folder OR substr({own}.checkpoint_folder, 1, "
    "length(rtrim({other}.checkpoint_folder, '/')) + 1) = rtrim({other}.checkpoint_folder, '/') || '/')"
)
"""Whether the other attempt's folder is one's own, or above it."""


def forget_run(connection: sqlite3.Connection, run_id: str) -> None:
    """A run is about to be removed: what others must still know of its attempts is kept. Works inside the caller's
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
    # If no attempt of that time is left in the folder, it concerns no run any more.
    connection.execute(
        "DELETE FROM former_neighbours AS f WHERE NOT EXISTS (SELECT 1 FROM attempts AS a "  # noqa: S608 - names only
        f"WHERE {_SHARES.format(own='f', other='a')} AND a.run_id NOT IN (f.run_id, ?) "
        f"AND a.created_at <= f.ended_at + {AFTER_END_SECONDS} "
        f"AND (a.ended_at IS NULL OR a.ended_at + {AFTER_END_SECONDS} >= f.begun_at))",
        (run_id,),
    )


def unplaced(connection: sqlite3.Connection, run_id: str, since: float) -> list[tuple[Neighbour, str]]:
    """The same, of attempts whose folder was not noted (they are older than the ledger, or were read back from their
    folders), each with its run's specification as text; but those of runs with a checkpoint folder of their own."""
    rows = connection.execute(
        "SELECT run_id, a.created_at, a.ended_at, r.spec FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE a.checkpoint_folder IS NULL AND run_id != ? AND (a.ended_at IS NULL OR a.ended_at >= ?) "
        "AND json_valid(r.spec) AND instr(r.spec ->> '$.checkpoints.directory', '{run_dir}') = 0",
        (run_id, since),
    )
    return [(Neighbour(*row[:3]), row[3]) for row in rows.fetchall()]


def note_folder(connection: sqlite3.Connection, run_id: str, number: int, folder: str) -> None:
    """Where an attempt writes its checkpoints, as its profile has it."""
    connection.execute(
        "UPDATE attempts SET checkpoint_folder = ? WHERE run_id = ? AND number = ? AND checkpoint_folder IS NULL",
        (folder, run_id, number),
    )


def note_real_folder(connection: sqlite3.Connection, run_id: str, number: int, folder: str) -> bool:
    """Where the folder of an attempt is with its links resolved, by which those of other runs are compared with it;
    False if that was known."""
    cursor = connection.execute(
        "UPDATE attempts SET checkpoint_folder = ?1 WHERE run_id = ?2 AND number = ?3 AND checkpoint_folder IS NOT ?1",
        (folder, run_id, number),
    )
    return cursor.rowcount > 0
