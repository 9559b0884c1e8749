"""GPUs and the host, as they are or as they were at a past moment.

Every reader takes ``at``, UTC unix seconds; None is now. Each value is a probe or two of a key, however long the record
is. Where the samples of a moment are gone, their minute or hour answers. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from gputui.store import json_columns, rollups, samples, series
from gputui.store.rollups import Bounds, GpuHistory, HostHistory
from gputui.store.samples import sample_means

Json = Any

GpuViewState = Literal["ok", "stale", "lost", "error"]

# A sample is stale after this many intervals, and not before this many seconds.
STALE_AFTER_INTERVALS = 3.0
STALE_AFTER_SECONDS = 3.0


# Samples later than now by more are of a clock that was set back since.
CLOCK_SLACK_SECONDS = 2.0


# A GPU that the driver no longer lists stays on show this long after it was last seen.
LOST_SHOWN_SECONDS = 86_400.0


_PACE_SAMPLES = 5

# Reports are rare; a GPU that comes and goes all day must not make each look at them long.
_EVENTS_LOOKED_AT = 512

LOOK_BACK_SECONDS = 86_400.0
"""Samples are looked through for so long; a GPU that was idle all the while was idle for so long at least."""

_FIRST_LOOK_SECONDS = 900.0
SETS_READ = 500


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process that holds memory of a GPU. ``start_ticks`` is None if the PID is not visible on this machine."""

    pid: int
    user: str | None
    command: str | None
    memory_bytes: int | None
    run_id: str | None
    rank: int | None
    kind: str | None
    start_ticks: int | None
    sm_percent: float | None


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU now: its newest sample joined with its facts, its slow values, its processes and its lease.

    ``state`` is ``stale`` when the newest sample is older than the driver should need; ``age_seconds`` is that
    sample's age. ``run_id`` is who leases the GPU, ``rank`` the rank of that run's process on it; ``shared_with`` are
    (id, name) of the other trials of its study that share it. ``processes`` is None if the driver gave no list.
    ``event_text`` is the newest thing that the driver reported by itself.
    """

    uuid: str
    index: int
    name: str
    state: GpuViewState
    at: float | None
    age_seconds: float | None
    utilization_percent: float | None
    memory_utilization_percent: float | None
    memory_used_bytes: int | None
    memory_reserved_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    performance_state: int | None
    throttle_reasons: tuple[str, ...] | None
    facts: Mapping[str, Json]
    slow: Mapping[str, Json]
    processes: tuple[ProcessView, ...] | None
    run_id: str | None
    run_name: str | None
    rank: int | None
    last_seen_at: float
    event_at: float | None
    event_code: int | None
    event_text: str | None
    shared_with: tuple[tuple[str, str], ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Every run that leases it."""
        return () if self.run_id is None else (self.run_id, *(run_id for run_id, _ in self.shared_with))


@dataclass(frozen=True, slots=True)
class HostView:
    """The newest sample of the host; ``at`` is UTC unix seconds, rates are bytes per second."""

    at: float
    cpu_percent: float | None
    cpu_count: int | None
    load_1m: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    swap_used_bytes: int | None
    disk_read_bytes_per_second: float | None
    disk_write_bytes_per_second: float | None
    disk_used_bytes: int | None
    disk_total_bytes: int | None
    shm_used_bytes: int | None
    shm_total_bytes: int | None
    network_received_bytes_per_second: float | None
    network_sent_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class GpuEventView:
    """Something that the driver reported by itself: ``xid``, ``lost`` or ``returned``. ``at`` is UTC unix seconds."""

    at: float
    event: str
    code: int | None
    text: str | None


class Idleness(NamedTuple):
    """``since``: the first sample from which on nothing ran, None where something runs. ``was_busy``: whether anything
    ran before it, in the time that was looked at."""

    since: float | None
    was_busy: bool


_GPU_ROW = """
g.uuid, g.position, g.name, {present}, s.state, s.at,
    s.utilization_percent, s.memory_utilization_percent, s.memory_used_bytes, s.memory_reserved_bytes,
    s.memory_total_bytes, s.temperature_celsius, s.power_watts, s.power_limit_watts, s.sm_clock_mhz,
    s.memory_clock_mhz, s.performance_state, s.throttle_reasons,
    g.facts, {slow}, {processes}, {holders}, {last_seen_at}
"""
"""The columns of `_gpu_view` from a GPU ``g`` and its sample ``s``."""


_GPUS = f"""
SELECT g.gpu_id, g.first_seen_at, {_GPU_ROW}
FROM gpus AS g
LEFT JOIN gpu_samples AS s
    ON s.gpu_id = g.gpu_id AND s.at = (SELECT max(at) FROM gpu_samples WHERE gpu_id = g.gpu_id AND at <= :at)
"""  # noqa: S608 - fixed names
_NOW = _GPUS.format(
    present="g.present",
    slow="g.slow",
    processes="g.processes",
    holders=(
        "(SELECT json_group_array(json_array(run_id, name)) FROM (SELECT run_id, name FROM leases "
        "JOIN runs USING (run_id) WHERE gpu_uuid = g.uuid ORDER BY since, run_id))"
    ),
    last_seen_at="g.last_seen_at",
)
_THEN = _GPUS.format(
    present=(
        "CASE (SELECT event FROM gpu_events WHERE uuid = g.uuid AND at <= :at AND event IN ('lost', 'returned') "
        "ORDER BY at DESC LIMIT 1) WHEN 'lost' THEN 0 WHEN 'returned' THEN 1 "
        "ELSE g.present OR g.last_seen_at > :at END"
    ),
    slow="NULL",
    processes=(
        "(SELECT processes FROM gpu_process_sets WHERE gpu_id = g.gpu_id AND at <= :at ORDER BY at DESC LIMIT 1)"
    ),
    holders="NULL",
    last_seen_at="min(g.last_seen_at, :at)",
)


def read_gpus(
    connection: sqlite3.Connection,
    now: float,
    at: float | None = None,
    holders: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> list[GpuView]:
    """Every GPU in the driver's order. ``now`` is UTC unix seconds and gives the ages; with ``at`` the GPUs are as they
    were then, held by the (id, name) of runs that ``holders`` gives by UUID."""
    if at is not None:
        return _gpus_at(connection, at, holders or {})
    row = connection.execute("SELECT interval_seconds FROM agent").fetchone()
    stale_after = stale_after_seconds(row[0] if row else None)
    reported = _reported(connection)
    rows = connection.execute(
        f"{_NOW} WHERE g.present = 1 OR g.last_seen_at > :seen ORDER BY g.position, g.gpu_id",
        {"at": now + CLOCK_SLACK_SECONDS, "seen": now - LOST_SHOWN_SECONDS},
    ).fetchall()
    return [_gpu_view(row[2:], reported.get(row[2]), now, stale_after) for row in rows]


def _gpus_at(
    connection: sqlite3.Connection, at: float, holders: Mapping[str, Sequence[tuple[str, str]]]
) -> list[GpuView]:
    reported = _reported(connection, at)
    found = []
    limits = rollups.bounds(connection)
    for gpu_id, first_seen_at, *row in connection.execute(
        f"{_THEN} ORDER BY g.position, g.gpu_id", {"at": at}
    ).fetchall():
        if row[5] is None and first_seen_at > at:
            continue
        view = _gpu_view(row, reported.get(row[0]), at, stale_after_seconds(_interval(connection, gpu_id, at)))
        if view.at is None and at < limits.raw_since:
            view = _rolled_up(connection, view, gpu_id, at, limits)
        if view.state == "lost" and at - (view.at or view.last_seen_at) > LOST_SHOWN_SECONDS:
            continue
        held = holders.get(view.uuid, ())
        run_id, run_name = held[0] if held else (None, None)
        found.append(
            replace(
                view,
                slow=_slow(connection, gpu_id, at),
                run_id=run_id,
                run_name=run_name,
                rank=rank_among(view.processes, run_id),
                shared_with=tuple(held[1:]),
            )
        )
    return found


def _rolled_up(connection: sqlite3.Connection, view: GpuView, gpu_id: int, at: float, limits: Bounds) -> GpuView:
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


def stale_after_seconds(interval_seconds: float | None) -> float:
    """The age from which on a sample is stale, for an agent that samples at this interval."""
    return max(STALE_AFTER_SECONDS, STALE_AFTER_INTERVALS * (interval_seconds or 0.0))


def aged(gpu: GpuView, now: float, stale_after: float) -> GpuView:
    """The same sample seen at a later moment: its age has grown, and it may have become stale."""
    if gpu.at is None:
        return gpu
    age = max(0.0, now - gpu.at)
    state = "stale" if gpu.state in ("ok", "error") and age > stale_after else gpu.state
    return replace(gpu, age_seconds=age, state=state)


def _gpu_view(
    row: Any, reported: tuple[float, int | None, str | None] | None, now: float, stale_after: float
) -> GpuView:
    """A GPU from the columns of `_GPU_ROW`, as it is seen at ``now``; ``reported`` is the newest (time, code, text)
    that the driver reported of it."""
    uuid, position, name, present, sample_state, at = row[:6]
    holders = [(str(run_id), str(name)) for run_id, name in json_columns.items(row[21])]
    run_id, run_name = holders[0] if holders else (None, None)
    facts = json_columns.mapping(row[18])
    processes = _processes(row[20])
    age = None if at is None else max(0.0, now - at)
    state: GpuViewState
    if not present or sample_state == "lost":
        state = "lost"
    elif age is None or age > stale_after:
        state = "stale"
    else:
        state = "error" if sample_state == "error" else "ok"
    total = row[10] if row[10] is not None else facts.get("memory_total_bytes")
    event_at, event_code, event_text = reported or (None, None, None)
    values = [
        uuid, position, name, state, at, age, *row[6:10], total, *row[11:17], json_columns.words(row[17]),
        facts, json_columns.mapping(row[19]), processes, run_id, run_name, rank_among(processes, run_id), row[22],
        event_at, event_code, event_text, tuple(holders[1:]),
    ]  # fmt: skip
    return GpuView(*values)


def rank_among(processes: Iterable[ProcessView] | None, run_id: str | None) -> int | None:
    """The lowest rank of a run among the processes of a GPU."""
    ranks = (p.rank for p in processes or () if p.rank is not None and run_id is not None and p.run_id == run_id)
    return min(ranks, default=None)


def _reported(
    connection: sqlite3.Connection, at: float | None = None
) -> dict[str, tuple[float, int | None, str | None]]:
    """The newest (time, code, text) that the driver reported of each GPU, by UUID."""
    where, order = ("", "event_id") if at is None else ("WHERE at <= ?", "at")
    rows = connection.execute(
        f"SELECT uuid, at, code, text FROM gpu_events {where} ORDER BY {order} DESC LIMIT 64",  # noqa: S608
        () if at is None else (at,),
    ).fetchall()
    return {uuid: (at, code, text) for uuid, at, code, text in reversed(rows)}


def xid_counts(connection: sqlite3.Connection, since: float, until: float) -> dict[str, int]:
    """How many XIDs each GPU had in (since, until], by UUID; GPUs without one are left out."""
    rows = connection.execute(
        "SELECT uuid, count(*) FROM (SELECT uuid, at, event FROM gpu_events ORDER BY event_id DESC LIMIT ?) "
        "WHERE event = 'xid' AND at > ? AND at <= ? GROUP BY uuid",
        (_EVENTS_LOOKED_AT, since, until),
    )
    return dict(rows.fetchall())


def gpu_events(connection: sqlite3.Connection, uuid: str, until: float, limit: int) -> list[GpuEventView]:
    """The newest reports about one GPU up to a moment, newest first."""
    rows = connection.execute(
        "SELECT at, event, code, text FROM gpu_events WHERE uuid = ? AND at <= ? ORDER BY event_id DESC LIMIT ?",
        (uuid, until, limit),
    )
    return [GpuEventView(*row) for row in rows]


def leased_since(connection: sqlite3.Connection, uuid: str) -> float | None:
    """Since when a run has a GPU (UTC unix seconds), the first one where several share it; None for a GPU that no run
    has."""
    row = connection.execute("SELECT min(since) FROM leases WHERE gpu_uuid = ?", (uuid,)).fetchone()
    return None if row is None else row[0]


def idleness(connection: sqlite3.Connection, uuid: str, after: float, now: float) -> Idleness:
    """What the samples of a GPU tell from ``after`` on, of LOOK_BACK_SECONDS at most."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    since: float | None = None
    oldest = max(after, now - LOOK_BACK_SECONDS)
    end, span = now + 1.0, _FIRST_LOOK_SECONDS
    while row is not None and end > oldest:
        begin = max(oldest, end - span)
        found = samples.between(connection, series.GPU, row[0], ("utilization_percent",), begin, end)
        for at, used in reversed(found):
            if used is not None and used > 0:
                return Idleness(since, was_busy=True)
            since = at if used is not None else since
        end, span = begin, span * 4
    return Idleness(since, was_busy=False)


def present_since(connection: sqlite3.Connection, uuid: str) -> dict[int, float]:
    """For each process on a GPU, by PID, since when it has been on the list of the driver without a break."""
    rows = connection.execute(
        "SELECT at, processes FROM gpu_process_sets WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?) "
        "ORDER BY at DESC LIMIT ?",
        (uuid, SETS_READ),
    )
    since: dict[int, float] = {}
    staying: set[int] | None = None
    for at, text in rows:
        pids = {process["pid"] for process in json.loads(text)} if text else set()
        staying = pids if staying is None else staying & pids
        if not staying:
            break
        since |= dict.fromkeys(staying, at)
    return since


def gpu_history(
    connection: sqlite3.Connection, since: float, until: float, buckets: int, uuid: str | None = None
) -> dict[str, GpuHistory]:
    """Means over ``buckets`` equal spans of [since, until), per GPU UUID, or for one GPU alone. GPUs without a sample
    there are left out."""
    known = connection.execute("SELECT gpu_id, uuid FROM gpus WHERE uuid = coalesce(?, uuid)", (uuid,)).fetchall()
    found: dict[str, GpuHistory] = {}
    # One GPU after the other: grouped all at once, SQLite sorts the samples of all of them first.
    for gpu_id, name in known:
        table = sample_means(connection, series.GPU, gpu_id, rollups.GPU_MEANS, since, until, buckets)
        table = rollups.completed(connection, table, rollups.GPU_MEANS, since, until, gpu_id)
        if any(value is not None for series in table for value in series):
            found[name] = GpuHistory(*(tuple(series) for series in table))
    return found


def memory_temperature_history(
    connection: sqlite3.Connection, uuid: str, since: float, until: float, buckets: int
) -> tuple[float | None, ...]:
    """The mean temperature of a GPU's memory in each of ``buckets`` equal spans of [since, until)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    if row is None:
        return (None,) * buckets
    columns = ("memory_temperature_celsius",)
    table = sample_means(connection, series.SLOW, row[0], columns, since, until, buckets)
    return tuple(rollups.completed(connection, table, columns, since, until, row[0])[0])


_HOST_COLUMNS = tuple(field.name for field in fields(HostView) if field.name != "at")


def read_host(connection: sqlite3.Connection, at: float | None = None) -> HostView | None:
    """The newest sample of the host; with ``at`` (UTC unix seconds) the newest that was known then."""
    row = samples.newest(connection, series.HOST, series.HOST_ID, _HOST_COLUMNS, float("inf") if at is None else at)
    if row is not None or at is None:
        return None if row is None else HostView(*row)
    then = rollups.host_then(connection, at, rollups.bounds(connection))
    return None if then is None else HostView(**{field.name: None for field in fields(HostView)} | then)


def host_history(connection: sqlite3.Connection, since: float, until: float, buckets: int) -> HostHistory:
    """Means over ``buckets`` equal spans of [since, until)."""
    columns = (
        "cpu_percent", "memory_used_bytes", "disk_read_bytes_per_second", "disk_write_bytes_per_second",
        "network_received_bytes_per_second", "network_sent_bytes_per_second",
    )  # fmt: skip
    table = sample_means(connection, series.HOST, series.HOST_ID, columns, since, until, buckets)
    table = rollups.completed(connection, table, columns, since, until)
    return HostHistory(*(tuple(series) for series in table))


@lru_cache(maxsize=256)
def _processes(text: str | None) -> tuple[ProcessView, ...] | None:
    """The processes of a GPU, None if the driver gave no list."""
    if text is None:
        return None
    return tuple(
        ProcessView(
            entry["pid"], entry.get("user"), entry.get("command"), entry.get("memory_bytes"), entry.get("run_id"),
            entry.get("rank"), entry.get("kind"), entry.get("start_ticks"), entry.get("sm_percent"),
        )
        for entry in json_columns.items(text)
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One such GPU. ``since`` is UTC unix seconds; ``run_id`` and ``attempt`` are those it failed under."""

    uuid: str
    since: float
    run_id: str | None
    attempt: int | None
    reason: str


def quarantined(connection: sqlite3.Connection) -> dict[str, Quarantined]:
    """All of them by UUID."""
    rows = connection.execute("SELECT gpu_uuid, since, run_id, attempt, reason FROM gpu_quarantine").fetchall()
    return {row[0]: Quarantined(*row) for row in rows}


def quarantine(
    connection: sqlite3.Connection, uuids: Sequence[str], *, run_id: str, attempt: int, reason: str, now: float
) -> None:
    """Add GPUs; one that is there already keeps its reason. Works inside the caller's transaction."""
    connection.executemany(
        "INSERT OR IGNORE INTO gpu_quarantine (gpu_uuid, since, run_id, attempt, reason) VALUES (?, ?, ?, ?, ?)",
        [(uuid, now, run_id, attempt, reason) for uuid in uuids],
    )


def clear(connection: sqlite3.Connection, uuid: str) -> bool:
    """Let runs have a GPU again; False if it was not in quarantine."""
    return connection.execute("DELETE FROM gpu_quarantine WHERE gpu_uuid = ?", (uuid,)).rowcount > 0
