"""State of GPUs and host, now or at a past time ``at`` (UTC unix seconds; None is now).

Each value needs one or two key lookups, however long the history is. If the samples of a time are
deleted, its minute or hour is used. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.store import rollups, samples, series
from gputui.store.rollups import GpuHistory, HostHistory
from gputui.store.rows import insert, json_items, json_mapping, named_rows, records
from gputui.store.series import GpuFacts, GpuProcess, GpuSample, GpuSlowSample, GpuState, HostSample

# A sample is stale after this many intervals, but not before this many seconds.
STALE_AFTER_INTERVALS = 3.0
STALE_AFTER_SECONDS = 3.0
# Later samples than this after now are from before the clock was set back.
CLOCK_SLACK_SECONDS = 2.0
# A GPU that the driver no longer lists is shown this long after it was last seen.
LOST_SHOWN_SECONDS = 86_400.0
# Events are rare; this bounds queries if a GPU comes and goes all day.
_EVENTS_LOOKED_AT = 512
XID_SECONDS = 86_400.0  # an error of yesterday is still a reason for doubt, one of last week is history
_PACE_SAMPLES = 5  # four distances, of which a gap spoils one

LOOK_BACK_SECONDS = 86_400.0
"""Maximum time searched for the begin of idleness."""

SETS_READ = 500  # changes of the processes on a GPU: some days of a shared one

_SAMPLED = ("at", *(name for name in series.GPU.columns if name != "memory_total_bytes"))
"""The fields of `GpuView` that are columns of a sample. A GPU has its total memory also where no sample says it."""

_PLAIN = ("uuid", "name", "last_seen_at", "event_at", "event_code", "event_text", "locked_by", *_SAMPLED)
"""The fields of `GpuView` that are columns of `_GPUS`."""

_GPUS = f"""
SELECT g.gpu_id, g.first_seen_at, g.uuid, g.position, g.name, g.facts, {", ".join(f"s.{name}" for name in _SAMPLED)},
    s.state, s.memory_total_bytes, s.throttle_reasons, iif(:is_past, NULL, g.slow) AS slow,
    iif(:is_past, CASE (SELECT event FROM gpu_events WHERE uuid = g.uuid AND at <= :at
            AND event IN ('lost', 'returned') ORDER BY at DESC LIMIT 1)
        WHEN 'lost' THEN 0 WHEN 'returned' THEN 1 ELSE g.present OR g.last_seen_at > :at END, g.present) AS present,
    iif(:is_past, (SELECT processes FROM gpu_process_sets WHERE gpu_id = g.gpu_id AND at <= :at
        ORDER BY at DESC LIMIT 1), g.processes) AS processes,
    iif(:is_past, NULL, (SELECT json_group_array(json_array(run_id, name)) FROM (SELECT run_id, name FROM leases
        JOIN runs USING (run_id) WHERE gpu_uuid = g.uuid ORDER BY since, run_id))) AS holders,
    iif(:is_past, NULL, (SELECT json_group_object(run_id, share) FROM leases WHERE gpu_uuid = g.uuid AND share < 1))
        AS shares,
    iif(:is_past, NULL, (SELECT coalesce(study_id, '') FROM leases JOIN runs USING (run_id)
        WHERE gpu_uuid = g.uuid AND share < 1 LIMIT 1)) AS shared_by,
    iif(:is_past, NULL, g.locked_by) AS locked_by, iif(:is_past, 0, g.is_excluded) AS is_excluded,
    min(g.last_seen_at, :at) AS last_seen_at, e.at AS event_at, e.code AS event_code, e.text AS event_text
FROM gpus AS g
LEFT JOIN (SELECT uuid, code, text, max(at) AS at FROM (SELECT * FROM gpu_events WHERE at <= :at
    ORDER BY at DESC LIMIT {_EVENTS_LOOKED_AT}) GROUP BY uuid) AS e ON e.uuid = g.uuid
LEFT JOIN gpu_samples AS s
    ON s.gpu_id = g.gpu_id AND s.at = (SELECT max(at) FROM gpu_samples WHERE gpu_id = g.gpu_id AND at <= :at)
ORDER BY g.position, g.gpu_id
"""  # noqa: S608 - fixed names

_HOST_COLUMNS = tuple(name for name in HostSample.__struct_fields__ if name != "at")


class ProcessView(GpuProcess, frozen=True):
    """A process with memory on a GPU, and the run that it belongs to."""

    run_id: str | None = None
    rank: int | None = None


class GpuView(GpuSample, frozen=True, kw_only=True):
    """A GPU: its newest sample with its facts, slow values, processes and lease.

    Attributes:
        at: The time (UTC unix seconds) of the newest sample, None without one.
        age_seconds: The age of the newest sample, None without one. The ``state`` of one that is too old is ``stale``.
        facts: What does not change, see `gputui.machine.gpu_model.GpuFacts`.
        slow: The newest `GpuSlowSample` as JSON.
        processes: None if the driver gave no list.
        run_id: The run that leases it.
        run_name: The name of ``run_id``.
        rank: The rank of the leasing run's process on it.
        last_seen_at: When the driver last listed it.
        event_at: When the driver's newest event was (UTC unix seconds).
        event_code: The code of the driver's newest event, such as an Xid.
        event_text: The driver's newest event for people.
        shared_with: Id and name of other runs that share it.
        shared_by: The study of these trials, "" for runs of none.
        shares: The part that each run takes, by its id.
        locked_by: The other home or user that has locked it now.
        is_excluded: ``gpus.yaml`` leaves it to others.
    """

    index: int
    name: str
    at: float | None
    age_seconds: float | None
    facts: GpuFacts
    slow: GpuSlowSample
    processes: tuple[ProcessView, ...] | None
    run_id: str | None
    run_name: str | None
    rank: int | None
    last_seen_at: float
    event_at: float | None
    event_code: int | None
    event_text: str | None
    shared_with: tuple[tuple[str, str], ...] = ()
    shared_by: str | None = None
    shares: Mapping[str, float] = msgspec.field(default_factory=dict)
    locked_by: str | None = None
    is_excluded: bool = False

    @property
    def own_used_bytes(self) -> int | None:
        """Memory in use on the GPU itself; None if it has none, but the host's."""
        if self.facts.memory_is_unified:
            return None
        return self.memory_used_bytes

    @property
    def run_ids(self) -> tuple[str, ...]:
        """All runs that lease it."""
        if self.run_id is None:
            return ()
        return (self.run_id, *(run_id for run_id, _ in self.shared_with))


class GpuEventView(Struct, frozen=True):
    """An event of the driver: ``xid``, ``lost`` or ``returned``. ``at`` is UTC unix seconds."""

    at: float
    event: str
    code: int | None
    text: str | None


class Idleness(NamedTuple):
    """``since`` is the first idle sample, None if the GPU is busy; ``was_busy``: before that."""

    since: float | None
    was_busy: bool


def read_gpus(
    connection: sqlite3.Connection,
    now: float,
    at: float | None = None,
    holders: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> list[GpuView]:
    """All GPUs in the driver's order.

    Args:
        now: UTC unix seconds, to which ages are relative.
        at: A past time whose state is asked for, None for now.
        holders: At a past time, the (id, name) of the runs that leased each GPU, by UUID.
    """
    (interval,) = connection.execute("SELECT interval_seconds FROM agent").fetchone() or (None,)
    moment = now + CLOCK_SLACK_SECONDS if at is None else at
    views = []
    for row in named_rows(connection, _GPUS, {"at": moment, "is_past": at is not None}):
        if at is None:
            leased = json_items(row["holders"])
            view = _gpu_view(row, leased, now, stale_after_seconds(interval))
        elif row["at"] is None and row["first_seen_at"] > at:
            continue
        else:
            view = _gpu_at(connection, row, (holders or {}).get(row["uuid"], ()), at)
        if view.state != "lost" or moment - (view.at or view.last_seen_at) <= LOST_SHOWN_SECONDS:
            views.append(view)
    return views


def _gpu_at(
    connection: sqlite3.Connection,
    row: dict[str, Any],
    holders: Sequence[Sequence[str]],
    at: float,
) -> GpuView:
    """A GPU at a past time."""
    times = connection.execute(
        "SELECT at FROM gpu_samples WHERE gpu_id = ? AND at <= ? ORDER BY at DESC LIMIT ?",
        (row["gpu_id"], at, _PACE_SAMPLES),
    ).fetchall()
    # The interval is the shortest distance of a few samples, because there may be gaps.
    interval = min((later - earlier for (later,), (earlier,) in itertools.pairwise(times)), default=None)
    view = _gpu_view(row, holders, at, stale_after_seconds(interval))
    limits = rollups.bounds(connection)
    if view.at is None and at < limits.raw_since:
        columns = [statistic.column for statistic in rollups.GPU_KEPT]
        means = rollups.means_around(connection, columns, at, limits, row["gpu_id"])
        if means is not None:
            if means["sm_clock_mhz"] is not None:
                means["sm_clock_mhz"] = round(means["sm_clock_mhz"])
            view = replace(view, **means, age_seconds=0.0)
            if view.state != "lost":
                view = replace(view, state="ok")
    slow = samples.newest(connection, series.SLOW, row["gpu_id"], tuple(series.SLOW.columns), at)
    return replace(view, slow=stored(GpuSlowSample, slow or {}, uuid=view.uuid))


def stale_after_seconds(interval_seconds: float | None) -> float:
    """The age at which a sample becomes stale, by the sampling interval."""
    return max(STALE_AFTER_SECONDS, STALE_AFTER_INTERVALS * (interval_seconds or 0.0))


def with_age(gpu: GpuView, now: float, stale_after: float) -> GpuView:
    """The GPU with the age of its sample, and its staleness, updated to ``now``."""
    if gpu.at is None:
        return gpu
    age = max(0.0, now - gpu.at)
    if gpu.state in ("ok", "error") and age > stale_after:
        return replace(gpu, age_seconds=age, state="stale")
    return replace(gpu, age_seconds=age)


def _gpu_view(
    row: Mapping[str, Any],
    holders: Sequence[Sequence[str]],
    now: float,
    stale_after: float,
) -> GpuView:
    """A GPU from a row of `_GPUS` at ``now``."""
    run_id, run_name = holders[0] if holders else (None, None)
    facts = stored(GpuFacts, json_mapping(row["facts"]), uuid=row["uuid"], index=row["position"], name=row["name"])
    processes = _processes(row["processes"])
    age = None
    if row["at"] is not None:
        age = max(0.0, now - row["at"])
    state: GpuState
    if not row["present"] or row["state"] == "lost":
        state = "lost"
    elif age is None or age > stale_after:
        state = "stale"
    else:
        state = "error" if row["state"] == "error" else "ok"
    total = row["memory_total_bytes"]
    reasons = row["throttle_reasons"]
    if total is None:
        total = facts.memory_total_bytes
    if reasons is not None:
        reasons = json_items(reasons)
    return GpuView(
        **{name: row[name] for name in _PLAIN},
        index=row["position"],
        state=state,
        age_seconds=age,
        memory_total_bytes=total,
        throttle_reasons=reasons,
        facts=facts,
        slow=stored(GpuSlowSample, json_mapping(row["slow"]), uuid=row["uuid"]),
        processes=processes,
        run_id=run_id,
        run_name=run_name,
        rank=rank_among(processes, run_id),
        shared_with=tuple((sharing_id, name) for sharing_id, name in holders[1:]),
        shared_by=row["shared_by"],
        shares=json_mapping(row["shares"]),
        is_excluded=bool(row["is_excluded"]),
    )


Values = TypeVar("Values", GpuFacts, GpuSlowSample)


def stored(kind: type[Values], columns: Mapping[str, Any], **identity: object) -> Values:
    """The values of a GPU from what is stored of them; all of them are unknown where that is damaged.

    Args:
        identity: Fields that have columns of their own.
    """
    try:
        # SQLite has no booleans.
        return msgspec.convert({**columns, **identity}, kind, strict=False)
    except msgspec.ValidationError:
        return msgspec.convert(identity, kind)


def rank_among(processes: Iterable[ProcessView] | None, run_id: str | None) -> int | None:
    """The lowest rank of a run among the processes of a GPU."""
    ranks = (p.rank for p in processes or () if p.rank is not None and run_id is not None and p.run_id == run_id)
    return min(ranks, default=None)


def xid_counts(connection: sqlite3.Connection, at: float) -> dict[str, int]:
    """Number of XIDs of each GPU in the day before a time (UTC unix seconds), by UUID, without zeros."""
    rows = connection.execute(
        "SELECT uuid, count(*) FROM (SELECT uuid, at, event FROM gpu_events ORDER BY event_id DESC LIMIT ?) "
        "WHERE event = 'xid' AND at > ? AND at <= ? GROUP BY uuid",
        (_EVENTS_LOOKED_AT, at - XID_SECONDS, at),
    )
    return dict(rows.fetchall())


def gpu_events(connection: sqlite3.Connection, uuid: str, end: float, limit: int) -> list[GpuEventView]:
    """The newest driver events of one GPU up to a time, newest first."""
    query = "SELECT * FROM gpu_events WHERE uuid = ? AND at <= ? ORDER BY event_id DESC LIMIT ?"
    return records(connection, GpuEventView, query, uuid, end, limit)


def leased_since(connection: sqlite3.Connection, uuid: str) -> float | None:
    """The begin of a GPU's first lease (UTC unix seconds); None if no run leases it."""
    row = connection.execute("SELECT min(since) FROM leases WHERE gpu_uuid = ?", (uuid,)).fetchone()
    if row is None:
        return None
    since: float | None = row[0]
    return since


def idleness(connection: sqlite3.Connection, uuid: str, after: float, now: float) -> Idleness:
    """The idleness of a GPU, from samples since ``after``, but at most LOOK_BACK_SECONDS."""
    since: float | None = None
    for at, used in connection.execute(
        "SELECT at, utilization_percent FROM gpu_samples WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?) "
        "AND at >= ? AND at <= ? ORDER BY at DESC",
        (uuid, max(after, now - LOOK_BACK_SECONDS), now + 1.0),
    ):
        if used is not None and used > 0:
            return Idleness(since, was_busy=True)
        if used is not None:
            since = at
    return Idleness(since, was_busy=False)


def memory_percent(connection: sqlite3.Connection, uuids: Sequence[str], since: float, end: float) -> float | None:
    """The highest part of the memory of one of these GPUs that samples between two times show in use;
    None without samples."""
    row = connection.execute(
        "SELECT max(100.0 * s.memory_used_bytes "
        "/ coalesce(s.memory_total_bytes, json_extract(g.facts, '$.memory_total_bytes'))) "
        "FROM gpus AS g JOIN gpu_samples AS s USING (gpu_id) "
        "WHERE g.uuid IN (SELECT value FROM json_each(?)) AND s.at BETWEEN ? AND ?",
        (json.dumps(list(uuids)), since, end),
    ).fetchone()
    percent: float | None = row[0]
    return percent


def set_locks(connection: sqlite3.Connection, holders: Mapping[str, str | None]) -> None:
    """Store who of other homes and users holds which GPU, by UUID. Raises sqlite3.Error."""
    connection.executemany(
        "UPDATE gpus SET locked_by = ? WHERE uuid = ?", [(holder, uuid) for uuid, holder in holders.items()]
    )


def set_excluded(connection: sqlite3.Connection, uuids: Collection[str]) -> None:
    """Store which GPUs no run of this home gets, by ``gpus.yaml``. Raises sqlite3.Error."""
    connection.execute(
        "UPDATE gpus SET is_excluded = uuid IN (SELECT value FROM json_each(?))", (json.dumps(sorted(uuids)),)
    )


def excluded(connection: sqlite3.Connection) -> set[str]:
    """The UUIDs of the GPUs that no run of this home gets, by ``gpus.yaml``."""
    return {uuid for (uuid,) in connection.execute("SELECT uuid FROM gpus WHERE is_excluded").fetchall()}


def present_since(connection: sqlite3.Connection, uuid: str) -> dict[int, float]:
    """For each process on a GPU, by PID, since when the driver has listed it unbroken."""
    rows = connection.execute(
        "SELECT at, processes FROM gpu_process_sets WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?) "
        "ORDER BY at DESC LIMIT ?",
        (uuid, SETS_READ),
    )
    since: dict[int, float] = {}
    staying: set[int] | None = None
    for at, text in rows:
        pids = {process["pid"] for process in json.loads(text or "[]")}
        staying = pids if staying is None else staying & pids
        if not staying:
            break
        since |= dict.fromkeys(staying, at)
    return since


def gpu_history(
    connection: sqlite3.Connection, since: float, end: float, buckets: int, uuid: str | None = None
) -> dict[str, GpuHistory]:
    """Means over ``buckets`` equal spans of [since, end), by UUID, of GPUs with samples."""
    gpus = connection.execute("SELECT gpu_id, uuid FROM gpus WHERE uuid = coalesce(?, uuid)", (uuid,)).fetchall()
    grid = rollups.SpanGrid.equal_parts(since, end, buckets)
    histories: dict[str, GpuHistory] = {}
    # One query per GPU: with a single query, SQLite would sort the samples of all GPUs first.
    for gpu_id, name in gpus:
        table = rollups.means(connection, series.GPU, gpu_id, GpuHistory.__struct_fields__, grid)
        if any(value is not None for column in table for value in column):
            histories[name] = GpuHistory(*table)
    return histories


def memory_temperature_history(
    connection: sqlite3.Connection, uuid: str, since: float, end: float, buckets: int
) -> tuple[float | None, ...]:
    """The mean temperature of a GPU's memory in ``buckets`` equal spans of [since, end)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    if row is None:
        return (None,) * buckets
    grid = rollups.SpanGrid.equal_parts(since, end, buckets)
    return rollups.means(connection, series.SLOW, row[0], (rollups.MEMORY_TEMPERATURE.column,), grid)[0]


def host_history(connection: sqlite3.Connection, since: float, end: float, buckets: int) -> HostHistory:
    """Means over ``buckets`` equal spans of [since, end)."""
    grid = rollups.SpanGrid.equal_parts(since, end, buckets)
    return HostHistory(*rollups.means(connection, series.HOST, series.HOST_ID, HostHistory.__struct_fields__, grid))


def read_host(connection: sqlite3.Connection, at: float | None = None) -> HostSample | None:
    """The newest sample of the host; with ``at`` (UTC unix seconds), the newest at that time."""
    moment = math.inf if at is None else at
    values = samples.newest(connection, series.HOST, series.HOST_ID, _HOST_COLUMNS, moment)
    if values is None and at is not None:
        columns = [statistic.column for statistic in rollups.HOST_KEPT]
        values = rollups.means_around(connection, columns, at, rollups.bounds(connection))
    if values is None:
        return None
    return HostSample(**values)


@lru_cache(maxsize=256)
def _processes(text: str | None) -> tuple[ProcessView, ...] | None:
    """The processes of a GPU, None if the driver gave no list."""
    try:
        if text is None:
            return None
        return msgspec.json.decode(text, type=tuple[ProcessView, ...])
    except msgspec.MsgspecError:
        return ()


class Quarantined(Struct, frozen=True):
    """A GPU in quarantine.

    Attributes:
        since: UTC unix seconds.
        run_id: The run under which it failed, None if a person set it aside.
        attempt: The attempt under which it failed, None if a person set it aside.
        actor: The person who set it aside, None if it failed.
    """

    uuid: str
    since: float
    run_id: str | None
    attempt: int | None
    reason: str
    actor: str | None

    @property
    def words(self) -> str:
        """The reason with the run that the GPU failed under, or the person who gave it."""
        if self.actor is not None:
            return f"by {self.actor}: {self.reason}"
        if self.run_id is not None:
            return f"{self.reason}, under {self.run_id}"
        return self.reason


def quarantined(connection: sqlite3.Connection) -> dict[str, Quarantined]:
    """All GPUs in quarantine by UUID."""
    records_of_gpus = records(connection, Quarantined, "SELECT *, gpu_uuid AS uuid FROM gpu_quarantine")
    return {gpu.uuid: gpu for gpu in records_of_gpus}


def quarantine_failed(
    connection: sqlite3.Connection, uuids: Sequence[str], run_id: str, attempt: int, *, reason: str, now: float
) -> None:
    """Quarantine GPUs that failed in an attempt; one that is in quarantine already keeps its reason."""
    for uuid in uuids:
        _quarantine(connection, uuid, run_id=run_id, attempt=attempt, reason=reason, since=now)


def quarantine_by(connection: sqlite3.Connection, uuid: str, actor: str, *, reason: str, now: float) -> None:
    """Quarantine a GPU that a person sets aside, unless it is in quarantine already."""
    _quarantine(connection, uuid, actor=actor, reason=reason, since=now)


def _quarantine(connection: sqlite3.Connection, uuid: str, **columns: object) -> None:
    insert(connection, "gpu_quarantine", "IGNORE", gpu_uuid=uuid, **columns)


def clear(connection: sqlite3.Connection, uuid: str) -> bool:
    """End a GPU's quarantine; False if it was not in quarantine."""
    return connection.execute("DELETE FROM gpu_quarantine WHERE gpu_uuid = ?", (uuid,)).rowcount > 0
