"""Delete samples, minutes and hours beyond the limits of age and size: a slice at a time, the oldest first.

Samples are deleted only after their hour was rolled up. The loop returns free pages to the file system.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gputui.runs.repository import transaction
from gputui.store.database import room
from gputui.store.retention import Retention
from gputui.store.rollups import DAY, HOUR
from gputui.store.series import GPU, HOST, HOST_ID, SLOW

# Samples of one source in a slice, which takes about 10 ms with eight GPUs.
TICKS_AT_ONCE = 600
# The remaining samples begin at a multiple of this.
EDGE_SECONDS = 600
# Delete until the size is this fraction below the limit, so that not every second has something to delete.
SIZE_SLACK = 0.02

# A limit before every sample.
_NOTHING = -1.0


class _Rows(NamedTuple):
    """The rows of one source, a GPU or the host, in a table of samples, minutes or hours."""

    table: str
    # The SQL condition that selects the rows, and its values.
    condition: str
    values: tuple[int, ...]

    def oldest(self, connection: sqlite3.Connection) -> float | None:
        """The oldest time (UTC unix seconds), None without rows."""
        query = f"SELECT min(at) FROM {self.table} WHERE {self.condition}"  # noqa: S608
        at: float | None = connection.execute(query, self.values).fetchone()[0]
        return at

    def behind(self, connection: sqlite3.Connection, count: int) -> float | None:
        """The time of the first row after the ``count`` oldest ones, None if there are no more."""
        query = f"SELECT at FROM {self.table} WHERE {self.condition} ORDER BY at LIMIT 1 OFFSET {count}"  # noqa: S608
        row = connection.execute(query, self.values).fetchone()
        return None if row is None else float(row[0])

    def delete(self, connection: sqlite3.Connection, before: float) -> None:
        """Delete the rows before a time."""
        connection.execute(f"DELETE FROM {self.table} WHERE {self.condition} AND at < ?", (*self.values, before))  # noqa: S608


@dataclass(slots=True)
class Pruning:
    """Deletes slices of the history until it is within its limits. ``clock`` returns monotonic seconds."""

    connection: sqlite3.Connection
    clock: Callable[[], float]

    def turn(self, retention: Retention, now: float, deadline: float, *, is_clock_trusted: bool) -> bool:
        """Delete at least a slice, and more until ``deadline`` (monotonic); True when nothing is left to delete.
        ``now`` is UTC unix seconds; unless ``is_clock_trusted``, only the size counts. Raises sqlite3.Error."""
        while self._slice(retention, now if is_clock_trusted else None):
            if self.clock() >= deadline:
                return False
        return True

    def _slice(self, retention: Retention, now: float | None) -> bool:
        """Delete one slice; False if there is nothing to delete. If ``now`` is None, nothing is too old."""

        def older_than(kept_seconds: float | None) -> float:
            return _NOTHING if now is None or kept_seconds is None else now - kept_seconds

        rolled_up = _rolled_up_until(self.connection)
        is_too_large = retention.size_bytes is not None and room(self.connection).used_bytes > retention.size_bytes * (
            1 - SIZE_SLACK
        )
        if self._cut_samples(rolled_up if is_too_large else min(older_than(retention.raw_seconds), rolled_up)):
            return True
        limit = rolled_up if is_too_large else min(older_than(retention.minutes_seconds), rolled_up)
        if self._cut_day("minutes", limit, "UPDATE record_bounds SET minutes_since = max(minutes_since, :cut)"):
            return True
        return self._cut_day(
            "hours",
            older_than(retention.hours_seconds),
            "DELETE FROM host_days WHERE at <= :day_before",
            "DELETE FROM gpu_days WHERE at <= :day_before",
        )

    def _cut_samples(self, limit: float) -> bool:
        """Delete the oldest samples before ``limit``: about TICKS_AT_ONCE of each source, and at least those up to the
        next multiple of EDGE_SECONDS. False if there are none."""
        series = [(HOST, HOST_ID), *((kind, gpu_id) for kind in (GPU, SLOW) for gpu_id in self._gpu_ids())]
        sources = [_Rows(kind.table, *kind.key(gpu_id)) for kind, gpu_id in series]
        begins, slice_ends = [], []
        for rows in sources:
            at = rows.oldest(self.connection)
            if at is not None and at < limit:
                begins.append(at)
                end = rows.behind(self.connection, TICKS_AT_ONCE)
                slice_ends += [] if end is None else [end]
        if not begins:
            return False
        next_edge = (min(begins) // EDGE_SECONDS + 1) * EDGE_SECONDS
        cut = min(limit, max(next_edge, min(slice_ends, default=limit))) // EDGE_SECONDS * EDGE_SECONDS
        if cut <= min(begins):
            return False
        with transaction(self.connection) as connection:
            for rows in sources:
                rows.delete(connection, cut)
            connection.execute("UPDATE record_bounds SET raw_since = max(raw_since, ?)", (cut,))
        return True

    def _cut_day(self, span: str, limit: float, *statements: str) -> bool:
        sources = self._spans(f"host_{span}", f"gpu_{span}")
        cut = self._day_end(sources, limit)
        if cut is None:
            return False
        with transaction(self.connection) as connection:
            for rows in sources:
                rows.delete(connection, cut)
            self._delete_process_sets(cut)
            for statement in statements:
                connection.execute(statement, {"cut": cut, "day_before": cut - DAY})
        return True

    def _spans(self, host_table: str, gpu_table: str) -> list[_Rows]:
        """The sources of the tables of one span."""
        return [
            _Rows(host_table, *HOST.key(HOST_ID)),
            *(_Rows(gpu_table, *GPU.key(gpu_id)) for gpu_id in self._gpu_ids()),
        ]

    def _day_end(self, sources: Iterable[_Rows], limit: float) -> float | None:
        """The end of the oldest row's day, or the last full hour before ``limit`` if that is earlier; None if no row is
        older."""
        begins = [at for rows in sources if (at := rows.oldest(self.connection)) is not None]
        if not begins:
            return None
        end = min(limit // HOUR * HOUR, (min(begins) // DAY + 1) * DAY)
        return end if end > min(begins) else None

    def _delete_process_sets(self, before: float) -> None:
        """Delete the sets of processes before a time except each GPU's newest, which is still valid at that time."""
        for gpu_id in self._gpu_ids():
            self.connection.execute(
                "DELETE FROM gpu_process_sets WHERE gpu_id = ? AND at < "
                "(SELECT max(at) FROM gpu_process_sets WHERE gpu_id = ? AND at <= ?)",
                (gpu_id, gpu_id, before),
            )

    def _gpu_ids(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT gpu_id FROM gpus")]


def _rolled_up_until(connection: sqlite3.Connection) -> float:
    """The time up to which the samples of every source are rolled up into hours (UTC unix seconds)."""
    row = connection.execute("SELECT min(until), count(*) FROM rollup_marks WHERE span_seconds = ?", (HOUR,)).fetchone()
    sources = 1 + connection.execute("SELECT count(*) FROM gpus").fetchone()[0]
    return float(row[0]) if row[0] is not None and row[1] == sources else _NOTHING
