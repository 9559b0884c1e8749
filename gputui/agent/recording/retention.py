"""Delete samples, minutes and hours beyond the limits of age and size: a slice at a time, the
oldest first.

Samples are deleted only after their hour was rolled up. The janitor returns free pages to the file
system.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from gputui.agent.recording.sample_rollups import Write
from gputui.store.agent import Retention
from gputui.store.database import used_space
from gputui.store.rollups import DAY, HOUR, MINUTE
from gputui.store.series import GPU, HOST, HOST_ID, SLOW

# Delete until the size is this fraction below the limit, so that not every second has something to
# delete.
SIZE_SLACK = 0.02

# A limit before every sample.
_NOTHING = -1.0


_SAMPLES_BOUND = "UPDATE record_bounds SET raw_since = max(raw_since, :cut)"
_MINUTES_BOUND = "UPDATE record_bounds SET minutes_since = max(minutes_since, :cut)"
# Each GPU's newest set of processes before the cut is still valid at that time.
_PROCESS_SETS = (
    "DELETE FROM gpu_process_sets AS old WHERE at < "
    "(SELECT max(at) FROM gpu_process_sets WHERE gpu_id = old.gpu_id AND at <= :cut)"
)


class _Source(NamedTuple):
    """The rows of a GPU or of the host in a table of samples, minutes or hours, selected by an SQL
    condition."""

    table: str
    condition: str
    values: tuple[int, ...]


class _Cut(NamedTuple):
    """Rows to delete, a slice at a time.

    Attributes:
        sources: whose rows.
        limit: rows before it are deleted (UTC unix seconds).
        then: statements for after a slice, with ``:cut``, the oldest time that is kept.
    """

    sources: Sequence[_Source]
    limit: float
    slice_seconds: int
    then: Sequence[str]


class Pruning(NamedTuple):
    """Deletes slices of the history until it is within its limits."""

    connection: sqlite3.Connection
    write: Write

    def prune(self, retention: Retention, now: float) -> bool:
        """Delete one slice; False if there is nothing to delete. ``now`` is UTC unix seconds.
        Raises sqlite3.Error."""
        return any(self._delete_slice(cut) for cut in self._cuts(retention, now))

    def _cuts(self, retention: Retention, now: float) -> list[_Cut]:
        """Samples, minutes and hours, in the order in which they are deleted."""
        rolled_up = self._rolled_up_until()
        if self._is_too_large(retention.size_bytes):
            samples_limit = rolled_up
            minutes_limit = rolled_up
        else:
            samples_limit = min(_older_than(retention.raw_seconds, now), rolled_up)
            minutes_limit = min(_older_than(retention.minutes_seconds, now), rolled_up)
        gpus = [gpu_id for (gpu_id,) in self.connection.execute("SELECT gpu_id FROM gpus")]
        host = HOST.key(HOST_ID)
        samples = [_Source(HOST.table, *host)]
        for series in (GPU, SLOW):
            samples += [_Source(series.table, *series.key(gpu)) for gpu in gpus]
        minutes = [_Source("host_minutes", *host), *(_Source("gpu_minutes", *GPU.key(gpu)) for gpu in gpus)]
        hours = [_Source("host_hours", *host), *(_Source("gpu_hours", *GPU.key(gpu)) for gpu in gpus)]
        hours_limit = _older_than(retention.hours_seconds, now)
        return [
            _Cut(samples, samples_limit, MINUTE, [_SAMPLES_BOUND]),
            _Cut(minutes, minutes_limit, HOUR, [_MINUTES_BOUND, _PROCESS_SETS]),
            _Cut(hours, hours_limit, DAY, [_PROCESS_SETS]),
        ]

    def _is_too_large(self, limit_bytes: int | None) -> bool:
        if limit_bytes is None:
            return False
        _, used_bytes = used_space(self.connection)
        return used_bytes > limit_bytes * (1 - SIZE_SLACK)

    def _delete_slice(self, cut: _Cut) -> bool:
        """Delete the oldest rows up to the end of a slice; False if there are none."""
        # A cut within an hour would leave a part of it.
        step_seconds = min(cut.slice_seconds, HOUR)
        limit = cut.limit // step_seconds * step_seconds
        begins = []
        for table, condition, values in cut.sources:
            (at,) = self.connection.execute(f"SELECT min(at) FROM {table} WHERE {condition}", values).fetchone()  # noqa: S608
            if at is not None:
                begins.append(at)
        oldest = min(begins, default=limit)
        slice_end = (oldest // cut.slice_seconds + 1) * cut.slice_seconds
        end = min(limit, slice_end)
        if end <= oldest:
            return False
        with self.write() as connection:
            for table, condition, values in cut.sources:
                connection.execute(f"DELETE FROM {table} WHERE {condition} AND at < ?", (*values, end))  # noqa: S608
            for statement in cut.then:
                connection.execute(statement, {"cut": end})
        return True

    def _rolled_up_until(self) -> float:
        """The time up to which the samples of every source are rolled up into hours (UTC unix
        seconds)."""
        earliest, marks, gpus = self.connection.execute(
            "SELECT min(until), count(*), (SELECT count(*) FROM gpus) FROM rollup_marks WHERE span_seconds = ?",
            (HOUR,),
        ).fetchone()
        if earliest is not None and marks == 1 + gpus:
            return float(earliest)
        return _NOTHING


def _older_than(kept_seconds: float | None, now: float) -> float:
    """The time before which everything is older than it is kept; before every sample if there is no limit."""
    if kept_seconds is None:
        return _NOTHING
    return now - kept_seconds
