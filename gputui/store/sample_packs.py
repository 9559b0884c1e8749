"""Conversion of sample packs (schemas 16 to 29) to rows, before migration 30."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

PACKED = ("gpu_sample", "gpu_slow_sample", "host_sample")
BLOCK_SECONDS = 600.0
HOUR, DAY = 3600.0, 86_400.0


def unpack(
    connection: sqlite3.Connection, raw_seconds: float | None, now: float, progress: Callable[[str], None]
) -> None:
    """Convert packs to rows, an hour per transaction, so that an interrupted conversion continues.

    Packs older than ``raw_seconds`` (None: no limit) are deleted if their hour was rolled up. ``now`` is UTC unix
    seconds. Raises sqlite3.Error.
    """
    kept_since = _kept_since(connection, raw_seconds, now)
    (count,) = connection.execute(f"SELECT {' + '.join(f'(SELECT count(*) FROM {name}_packs)' for name in PACKED)}")  # noqa: S608
    remaining = total = count[0]
    while remaining:
        progress(f"unpacking samples, {100 * (total - remaining) // total} %")
        oldest = min(at for at in (_first(connection, name) for name in PACKED) if at is not None)
        begin = oldest // BLOCK_SECONDS * BLOCK_SECONDS
        end = min(begin + DAY, kept_since) if begin < kept_since else begin + HOUR
        connection.execute("BEGIN IMMEDIATE")
        for name in PACKED:
            if begin >= kept_since:
                _to_rows(connection, name, begin, end)
            remaining -= connection.execute(f"DELETE FROM {name}_packs WHERE at < ?", (end,)).rowcount  # noqa: S608
        if begin < kept_since:
            connection.execute("UPDATE record_bounds SET raw_since = max(raw_since, ?)", (end,))
        connection.execute("COMMIT")


def _to_rows(connection: sqlite3.Connection, name: str, begin: float, end: float) -> None:
    columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({name}_rows)"))
    sources: list[tuple[str, tuple[int, ...]]] = [("", ())]
    if name != "host_sample":
        sources = [("gpu_id = ? AND ", row) for row in connection.execute("SELECT gpu_id FROM gpus").fetchall()]
    for where, key in sources:
        connection.execute(
            f"INSERT OR IGNORE INTO {name}_rows ({columns}) SELECT {columns} FROM {name}s "  # noqa: S608
            f"WHERE {where}pack_at >= ? AND pack_at < ?",
            (*key, begin, end),
        )


def _first(connection: sqlite3.Connection, name: str) -> float | None:
    (at,) = connection.execute(f"SELECT min(at) FROM {name}_packs").fetchone()  # noqa: S608
    return at  # type: ignore[no-any-return]


def _kept_since(connection: sqlite3.Connection, raw_seconds: float | None, now: float) -> float:
    """The time from which packs become rows; earlier ones are in minutes and hours."""
    newest = max(
        connection.execute(f"SELECT coalesce(max(at), 0.0) FROM {name}_{kind} WHERE at <= ?", (now,)).fetchone()[0]  # noqa: S608
        for name in PACKED
        for kind in ("rows", "packs")
    )
    marks = connection.execute("SELECT until FROM rollup_marks WHERE span_seconds = ?", (int(HOUR),)).fetchall()
    sources = 1 + connection.execute("SELECT count(*) FROM gpus").fetchone()[0]
    if raw_seconds is None or len(marks) < sources:
        return -1.0
    return float(min((newest - raw_seconds) // HOUR * HOUR, *(row[0] for row in marks)))
