"""GPUs as they were at a past moment: of each value the newest that was known then.

Every value is a probe or two of a key, however long the record is. Times are UTC unix seconds.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from gputui.store import rollups, samples, series
from gputui.store.queries import GPU_ROW, LOST_SHOWN_SECONDS, gpu_view, rank_among, stale_after_seconds
from gputui.store.rollups import Bounds
from gputui.store.views import GpuView

_THEN = GPU_ROW.format(
    present=(
        "CASE (SELECT event FROM gpu_events WHERE uuid = g.uuid AND at <= :at AND event IN ('lost', 'returned') "
        "ORDER BY at DESC LIMIT 1) WHEN 'lost' THEN 0 WHEN 'returned' THEN 1 "
        "ELSE g.present OR g.last_seen_at > :at END"
    ),
    slow="NULL",
    processes=(
        "(SELECT processes FROM gpu_process_sets WHERE gpu_id = g.gpu_id AND at <= :at ORDER BY at DESC LIMIT 1)"
    ),
    run_id="NULL",
    run_name="NULL",
    last_seen_at="min(g.last_seen_at, :at)",
)
_GPUS = f"""
SELECT g.gpu_id, g.first_seen_at, {_THEN}
FROM gpus AS g
LEFT JOIN gpu_samples AS s
    ON s.gpu_id = g.gpu_id AND s.at = (SELECT max(at) FROM gpu_samples WHERE gpu_id = g.gpu_id AND at <= :at)
ORDER BY g.position, g.gpu_id
"""  # noqa: S608 - fixed names

_PACE_SAMPLES = 5


def gpus(connection: sqlite3.Connection, at: float, holders: Mapping[str, tuple[str, str]]) -> list[GpuView]:
    """Every GPU as it was, in the driver's order. ``holders`` gives the (id, name) of the run that held a GPU, by its
    UUID. Raises sqlite3.Error."""
    reported = _gpu_events(connection, at)
    found = []
    limits = rollups.bounds(connection)
    for gpu_id, first_seen_at, *row in connection.execute(_GPUS, {"at": at}).fetchall():
        if row[5] is None and first_seen_at > at:
            continue
        view = gpu_view(row, reported.get(row[0]), at, stale_after_seconds(_interval(connection, gpu_id, at)))
        if view.at is None and at < limits.raw_since:
            view = _put_together(connection, view, gpu_id, at, limits)
        if view.state == "lost" and at - (view.at or view.last_seen_at) > LOST_SHOWN_SECONDS:
            continue
        run_id, run_name = holders.get(view.uuid, (None, None))
        found.append(
            replace(
                view,
                slow=_slow(connection, gpu_id, at),
                run_id=run_id,
                run_name=run_name,
                rank=rank_among(view.processes, run_id),
            )
        )
    return found


def _put_together(connection: sqlite3.Connection, view: GpuView, gpu_id: int, at: float, limits: Bounds) -> GpuView:
    """The GPU with the means of its minute or hour, where the samples of that time are gone."""
    then = rollups.gpu_then(connection, gpu_id, at, limits)
    if then is None:
        return view
    return replace(view, **then, age_seconds=0.0, state="lost" if view.state == "lost" else "ok")


def _slow(connection: sqlite3.Connection, gpu_id: int, at: float) -> Mapping[str, object]:
    names = tuple(series.SLOW.columns)
    row = samples.newest(connection, series.SLOW, gpu_id, names, at)
    return {} if row is None else dict(zip(names, row[1:], strict=True))


def _interval(connection: sqlite3.Connection, gpu_id: int, at: float) -> float | None:
    """How often the GPU was sampled then: the shortest distance between a few samples, for there may be a gap."""
    times = samples.times_up_to(connection, series.GPU, gpu_id, at, _PACE_SAMPLES)
    return min((later - earlier for later, earlier in itertools.pairwise(times)), default=None)


def _gpu_events(connection: sqlite3.Connection, at: float) -> dict[str, tuple[float, int | None, str | None]]:
    rows = connection.execute(
        "SELECT uuid, at, code, text FROM gpu_events WHERE at <= ? ORDER BY at DESC LIMIT 64", (at,)
    ).fetchall()
    return {uuid: (at, code, text) for uuid, at, code, text in reversed(rows)}
