"""Deleting what is older, or more, than is to be kept: a little at a time, the oldest first.

Samples go only after the hour that they lie in has been put together. Freed pages are used again, or given back to the
file system (``agent.free_pages``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from gputui.runs.repository import transaction
from gputui.store.database import room
from gputui.store.retention import Retention
from gputui.store.rollups import DAY, HOUR
from gputui.store.series import GPU, HOST, HOST_ID, SLOW

# So many of one source make a slice, about 10 ms with eight GPUs.
TICKS_AT_ONCE = 600
# What remains begins at a whole minute, and is read from there on.
EDGE_SECONDS = 600
# Below the limit by so much, so that not every second has something to delete.
SIZE_SLACK = 0.02


def put_together(connection: sqlite3.Connection) -> float:
    """Up to when every source's samples are in hours (UTC unix seconds); -1 before the first. Raises sqlite3.Error."""
    row = connection.execute("SELECT min(until), count(*) FROM rollup_marks WHERE span_seconds = ?", (HOUR,)).fetchone()
    sources = 1 + connection.execute("SELECT count(*) FROM gpus").fetchone()[0]
    return float(row[0]) if row[0] is not None and row[1] == sources else -1.0


@dataclass(slots=True)
class Pruning:
    """``clock`` gives monotonic seconds, to bound a turn."""

    connection: sqlite3.Connection
    clock: Callable[[], float]

    def turn(self, retention: Retention, now: float, deadline: float, *, ages_hold: bool) -> bool:
        """Delete at least a slice, and more until the clock shows ``deadline``; True when nothing is left to delete.
        ``now`` is UTC unix seconds; ``ages_hold`` says that it can be trusted. Raises sqlite3.Error."""
        while self._slice(retention, now, ages_hold):
            if self.clock() >= deadline:
                return False
        return True

    def _slice(self, retention: Retention, now: float, ages_hold: bool) -> bool:
        """Delete one slice; False where there is nothing."""
        limit = retention.size_bytes
        too_large = limit is not None and room(self.connection).used_bytes > limit * (1 - SIZE_SLACK)
        raw_limit = -1.0 if not ages_hold or retention.raw_seconds is None else now - retention.raw_seconds
        minutes_limit = -1.0 if not ages_hold or retention.minutes_seconds is None else now - retention.minutes_seconds
        together = put_together(self.connection)
        if self._cut_raw(together if too_large else min(raw_limit, together)):
            return True
        if self._cut_spans("minutes", "minutes_since", together if too_large else min(minutes_limit, together)):
            return True
        if not ages_hold or retention.hours_seconds is None:
            return False
        return self._cut_spans("hours", None, now - retention.hours_seconds)

    def _gpu_ids(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT gpu_id FROM gpus")]

    def _cut_raw(self, limit: float) -> bool:
        oldest, some_on = [], []
        for table, condition, key in self._raw_sources():
            at = self.connection.execute(f"SELECT min(at) FROM {table} WHERE {condition}", key).fetchone()[0]  # noqa: S608
            if at is not None and at < limit:
                oldest.append(at)
                row = self.connection.execute(
                    f"SELECT at FROM {table} WHERE {condition} ORDER BY at LIMIT 1 OFFSET {TICKS_AT_ONCE}",  # noqa: S608
                    key,
                ).fetchone()
                some_on += [] if row is None else [row[0]]
        if not oldest:
            return False
        next_edge = (min(oldest) // EDGE_SECONDS + 1) * EDGE_SECONDS
        cut = min(limit // EDGE_SECONDS * EDGE_SECONDS, max(next_edge, min(some_on, default=limit)))
        cut = cut // EDGE_SECONDS * EDGE_SECONDS
        if cut <= min(oldest):
            return False
        with transaction(self.connection):
            for table, condition, key in self._raw_sources():
                self.connection.execute(f"DELETE FROM {table} WHERE {condition} AND at < ?", (*key, cut))  # noqa: S608
            self.connection.execute("UPDATE record_bounds SET raw_since = max(raw_since, ?)", (cut,))
        return True

    def _raw_sources(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(table, condition, its values) of every source of samples."""
        sources = [(HOST, HOST_ID), *((series, gpu_id) for series in (GPU, SLOW) for gpu_id in self._gpu_ids())]
        return [(series.table, *series.key(gpu_id)) for series, gpu_id in sources]

    def _cut_spans(self, name: str, bound: str | None, limit: float) -> bool:
        row = self.connection.execute(f"SELECT min(at) FROM host_{name}").fetchone()  # noqa: S608
        oldest = [row[0]] if row[0] is not None else []
        for gpu_id in self._gpu_ids():
            row = self.connection.execute(f"SELECT min(at) FROM gpu_{name} WHERE gpu_id = ?", (gpu_id,)).fetchone()  # noqa: S608
            oldest += [row[0]] if row[0] is not None else []
        if not oldest:
            return False
        cut = min(limit // HOUR * HOUR, (min(oldest) // DAY + 1) * DAY)
        if cut <= min(oldest):
            return False
        with transaction(self.connection):
            self.connection.execute(f"DELETE FROM host_{name} WHERE at < ?", (cut,))  # noqa: S608
            for gpu_id in self._gpu_ids():
                self.connection.execute(f"DELETE FROM gpu_{name} WHERE gpu_id = ? AND at < ?", (gpu_id, cut))  # noqa: S608
                # The set of processes that was there at the cut is still the answer after it.
                self.connection.execute(
                    "DELETE FROM gpu_process_sets WHERE gpu_id = ? AND at < "
                    "(SELECT max(at) FROM gpu_process_sets WHERE gpu_id = ? AND at <= ?)",
                    (gpu_id, gpu_id, cut),
                )
            if name == "hours":
                for table in ("host_days", "gpu_days"):
                    self.connection.execute(f"DELETE FROM {table} WHERE at <= ?", (cut - DAY,))  # noqa: S608
            if bound is not None:
                self.connection.execute(f"UPDATE record_bounds SET {bound} = max({bound}, ?)", (cut,))  # noqa: S608
        return True
