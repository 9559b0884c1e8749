"""Read-only questions to the store. Every function takes a connection and answers with frozen values.

All are cheap enough to be asked again whenever ``PRAGMA data_version`` moved: the newest sample of a GPU is one probe
of the primary key, and JSON that did not change is not parsed again.
"""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from gputui.store import json_columns, rollups, sample_means, samples, series
from gputui.store.events import EVENT_COLUMNS, SINK_KINDS
from gputui.store.views import (
    AgentView,
    AttemptView,
    DecisionView,
    EventView,
    GpuHistory,
    GpuView,
    GpuViewState,
    HostHistory,
    HostView,
    IncidentView,
    ProcessView,
    RunView,
    TransitionView,
)

# A sample is stale after this many intervals, and not before this many seconds.
STALE_AFTER_INTERVALS = 3.0
STALE_AFTER_SECONDS = 3.0

# Samples later than now by more are of a clock that was set back since.
CLOCK_SLACK_SECONDS = 2.0

# A GPU that the driver no longer lists stays on show this long after it was last seen.
LOST_SHOWN_SECONDS = 86_400.0

OVER_STATES = ("succeeded", "failed", "stopped")
"""States of a run that never moves again but by a person's wish."""


class RunLookupError(LookupError):
    """A run could not be told from what was typed; the text says what to do."""


class RunNotFoundError(RunLookupError):
    """No run matches. ``nearest`` holds ids and names that look like what was typed, best first."""

    def __init__(self, wanted: str, nearest: list[str]) -> None:
        hint = f"nearest: {', '.join(nearest)}" if nearest else "gputui ps lists them"
        super().__init__(f"no run {wanted!r}; {hint}")
        self.nearest = nearest


class AmbiguousRunError(RunLookupError):
    """Several runs begin with what was typed. ``candidates`` holds their ids, newest first."""

    def __init__(self, wanted: str, candidates: list[str]) -> None:
        super().__init__(f"{wanted!r} could be {', '.join(candidates)}; type more of the id")
        self.candidates = candidates


def data_version(connection: sqlite3.Connection) -> int:
    """A number that moves whenever another connection committed something."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def agent(connection: sqlite3.Connection) -> AgentView | None:
    """The newest agent of this store, alive or not; None before the first one."""
    row = connection.execute(
        "SELECT pid, version, started_at, heartbeat_at, ended_at, recording, interval_seconds, source, driver_version, "
        "gpu_problem, sampler_state, sampler_silent_seconds FROM agent"
    ).fetchone()
    if row is None:
        return None
    values = [*row[:5], bool(row[5]), *row[6:]]
    return AgentView(*values)


# --- hardware -------------------------------------------------------------------------------------------------------

GPU_ROW = """
g.uuid, g.position, g.name, {present}, s.state, s.at,
    s.utilization_percent, s.memory_utilization_percent, s.memory_used_bytes, s.memory_reserved_bytes,
    s.memory_total_bytes, s.temperature_celsius, s.power_watts, s.power_limit_watts, s.sm_clock_mhz,
    s.memory_clock_mhz, s.performance_state, s.throttle_reasons,
    g.facts, {slow}, {processes}, {run_id}, {run_name}, {last_seen_at}
"""
"""The columns of `gpu_view` from a GPU ``g`` and its sample ``s``."""

_NOW = GPU_ROW.format(
    present="g.present",
    slow="g.slow",
    processes="g.processes",
    run_id="l.run_id",
    run_name="r.name",
    last_seen_at="g.last_seen_at",
)
_GPUS = f"""
SELECT {_NOW}
FROM gpus AS g
LEFT JOIN gpu_samples AS s
    ON s.gpu_id = g.gpu_id AND s.at = (SELECT max(at) FROM gpu_samples WHERE gpu_id = g.gpu_id AND at <= :latest)
LEFT JOIN leases AS l ON l.gpu_uuid = g.uuid
LEFT JOIN runs AS r ON r.run_id = l.run_id
WHERE g.present = 1 OR g.last_seen_at > :seen
ORDER BY g.position, g.gpu_id
"""  # noqa: S608 - fixed names


def gpus(connection: sqlite3.Connection, now: float) -> list[GpuView]:
    """Every GPU as it is now, in the driver's order; ``now`` is UTC unix seconds and gives the ages."""
    row = connection.execute("SELECT interval_seconds FROM agent").fetchone()
    stale_after = stale_after_seconds(row[0] if row else None)
    reported = _newest_gpu_events(connection)
    latest = now + CLOCK_SLACK_SECONDS
    rows = connection.execute(_GPUS, {"latest": latest, "seen": now - LOST_SHOWN_SECONDS}).fetchall()
    return [gpu_view(row, reported.get(row[0]), now, stale_after) for row in rows]


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


def gpu_view(
    row: Any, reported: tuple[float, int | None, str | None] | None, now: float, stale_after: float
) -> GpuView:
    """A GPU from the columns of `GPU_ROW`, as it is seen at ``now``; ``reported`` is the newest (time, code, text) that
    the driver told of it."""
    uuid, position, name, present, sample_state, at = row[:6]
    run_id = row[21]
    facts = json_columns.mapping(row[18])
    processes = json_columns.processes(row[20])
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
        facts, json_columns.mapping(row[19]), processes, run_id, row[22], rank_among(processes, run_id), row[23],
        event_at, event_code, event_text,
    ]  # fmt: skip
    return GpuView(*values)


def rank_among(processes: Iterable[ProcessView] | None, run_id: str | None) -> int | None:
    """The lowest rank of a run among the processes of a GPU."""
    ranks = (p.rank for p in processes or () if p.rank is not None and run_id is not None and p.run_id == run_id)
    return min(ranks, default=None)


def _newest_gpu_events(connection: sqlite3.Connection) -> dict[str, tuple[float, int | None, str | None]]:
    rows = connection.execute("SELECT uuid, at, code, text FROM gpu_events ORDER BY event_id DESC LIMIT 64").fetchall()
    return {uuid: (at, code, text) for uuid, at, code, text in reversed(rows)}


def gpu_history(
    connection: sqlite3.Connection, since: float, until: float, buckets: int, uuid: str | None = None
) -> dict[str, GpuHistory]:
    """Means over ``buckets`` equal spans of [since, until), per GPU UUID, or for one GPU alone. GPUs without a sample
    there are left out."""
    known = connection.execute("SELECT gpu_id, uuid FROM gpus WHERE uuid = coalesce(?, uuid)", (uuid,)).fetchall()
    found: dict[str, GpuHistory] = {}
    # One GPU after the other: grouped all at once, SQLite sorts the samples of all of them first.
    for gpu_id, name in known:
        table = sample_means.means(connection, series.GPU, gpu_id, rollups.GPU_MEANS, since, until, buckets)
        table = rollups.completed(connection, table, rollups.GPU_MEANS, since, until, gpu_id)
        if any(value is not None for series in table for value in series):
            found[name] = GpuHistory(*(tuple(series) for series in table))
    return found


_HOST_COLUMNS = tuple(field.name for field in fields(HostView) if field.name != "at")


def host(connection: sqlite3.Connection, at: float | None = None) -> HostView | None:
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
    table = sample_means.means(connection, series.HOST, series.HOST_ID, columns, since, until, buckets)
    table = rollups.completed(connection, table, columns, since, until)
    return HostHistory(*(tuple(series) for series in table))


# --- runs -----------------------------------------------------------------------------------------------------------

_RUNS = """
SELECT r.run_id, r.sequence, r.name, r.profile, r.state, r.attempt, r.params, r.created_at, r.queued_at, r.not_before,
    r.started_at, r.ended_at, r.reason, r.waiting_for, r.resume_from,
    a.state, a.started_at, a.last_step, a.resumed_step, a.gpus,
    (SELECT json_group_array(gpu_uuid) FROM leases WHERE run_id = r.run_id), r.spec, r.priority
FROM runs AS r
LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt
"""


def runs(
    connection: sqlite3.Connection, *, limit: int | None = None, active_only: bool = False, over_only: bool = False
) -> list[RunView]:
    """Runs, newest first; ``active_only`` leaves out those that have ended, ``over_only`` the others."""
    where = f"WHERE r.state {'' if over_only else 'NOT '}IN {OVER_STATES}" if active_only or over_only else ""
    query = f"{_RUNS} {where} ORDER BY r.sequence DESC LIMIT ?"
    return [_run(row) for row in connection.execute(query, (-1 if limit is None else limit,))]


def runs_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Moves when a run was added, removed, or went from state to state: what is known of runs that are over holds as
    long as it does not."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM runs), (SELECT coalesce(max(transition_id), 0) FROM transitions)"
    ).fetchone()
    return row[0], row[1]


def run(connection: sqlite3.Connection, wanted: str) -> RunView:
    """The run meant by ``wanted``: its id, else the only one whose id begins so, else the newest with that name.

    Raises RunNotFoundError or AmbiguousRunError.
    """
    text = wanted.strip()
    row = connection.execute(f"{_RUNS} WHERE r.run_id = ?", (text,)).fetchone()
    if row is not None:
        return _run(row)
    candidates = []
    if text:
        candidates = connection.execute(
            f"{_RUNS} WHERE substr(r.run_id, 1, ?) = ? ORDER BY r.sequence DESC LIMIT 6", (len(text), text)
        ).fetchall()
    if len(candidates) == 1:
        return _run(candidates[0])
    row = connection.execute(f"{_RUNS} WHERE r.name = ? ORDER BY r.sequence DESC LIMIT 1", (text,)).fetchone()
    if row is not None:
        return _run(row)
    if candidates:
        raise AmbiguousRunError(wanted, [found[0] for found in candidates])
    known = connection.execute("SELECT run_id, name FROM runs ORDER BY sequence DESC LIMIT 500").fetchall()
    words = list(dict.fromkeys(word for found in known for word in found))
    raise RunNotFoundError(wanted, difflib.get_close_matches(text, words, n=3, cutoff=0.5))


def _run(row: Any) -> RunView:
    leased = json_columns.items(row[20])
    return RunView(
        *[*row[:6], json_columns.mapping(row[6]), *row[7:19], tuple(leased or json_columns.items(row[19])), *row[21:]]
    )


_ATTEMPTS = (
    "SELECT run_id, number, state, params, gpus, launch, created_at, started_at, first_step_at, ended_at, "
    "exit_code, exit_signal, exit, resumed_from, resumed_step, first_step, last_step, stop_requested FROM attempts"
)


def attempts(connection: sqlite3.Connection, run_id: str) -> list[AttemptView]:
    """The attempts of a run, first to last."""
    rows = connection.execute(f"{_ATTEMPTS} WHERE run_id = ? ORDER BY number", (run_id,))
    return [_attempt(row) for row in rows]


def newest_attempt(connection: sqlite3.Connection, run_id: str, at: float) -> AttemptView | None:
    """The newest attempt that there was at a moment (UTC unix seconds), as it is known now."""
    row = connection.execute(
        f"{_ATTEMPTS} WHERE run_id = ? AND created_at <= ? ORDER BY number DESC LIMIT 1", (run_id, at)
    ).fetchone()
    return None if row is None else _attempt(row)


def _attempt(row: Any) -> AttemptView:
    exit_report = json_columns.optional_mapping(row[12])
    values = [
        *row[:3],
        json_columns.mapping(row[3]),
        tuple(json_columns.items(row[4])),
        json_columns.mapping(row[5]),
        *row[6:12],
        exit_report,
        *row[13:],
    ]
    return AttemptView(*values)


def incidents(
    connection: sqlite3.Connection, run_id: str | None = None, *, limit: int | None = None, after_id: int = 0
) -> list[IncidentView]:
    """Incidents with an id above ``after_id``, oldest first; ``limit`` keeps the newest so many."""
    columns = "incident_id, run_id, attempt, at, kind, rank, step, summary, evidence"
    rows = _newest(connection, "incidents", "incident_id", columns, run_id, limit, after_id)
    return [IncidentView(*[*row[:8], tuple(json_columns.items(row[8]))]) for row in rows]


def decisions(
    connection: sqlite3.Connection, run_id: str | None = None, *, limit: int | None = None, after_id: int = 0
) -> list[DecisionView]:
    """What recovery decided, in the same manner."""
    columns = (
        "decision_id, incident_id, run_id, attempt, at, rung, verdict, actions, params, resume_from, "
        "delay_seconds, reason, outcome"
    )
    rows = _newest(connection, "decisions", "decision_id", columns, run_id, limit, after_id)
    return [
        DecisionView(*[*row[:7], tuple(json_columns.items(row[7])), json_columns.mapping(row[8]), *row[9:]])
        for row in rows
    ]


def transitions(
    connection: sqlite3.Connection, run_id: str | None = None, *, limit: int | None = None, after_id: int = 0
) -> list[TransitionView]:
    """Moves of runs from state to state, in the same manner."""
    columns = "transition_id, run_id, at, from_state, to_state, cause, actor"
    rows = _newest(connection, "transitions", "transition_id", columns, run_id, limit, after_id)
    return [TransitionView(*row) for row in rows]


def events(
    connection: sqlite3.Connection, run_id: str | None = None, *, limit: int | None = None, after_id: int = 0
) -> list[EventView]:
    """Sentences about what happened, in the same manner."""
    rows = _newest(connection, "events", "event_id", ", ".join(EVENT_COLUMNS), run_id, limit, after_id)
    return [EventView(*row) for row in rows]


def newest_event_id(connection: sqlite3.Connection, run_id: str) -> int:
    """The number of a run's newest event, 0 where it has none."""
    return int(
        connection.execute("SELECT coalesce(max(event_id), 0) FROM events WHERE run_id = ?", (run_id,)).fetchone()[0]
    )


def sink_events(connection: sqlite3.Connection, run_id: str, *, after_id: int = 0) -> list[EventView]:
    """What was said of a run's sinks, oldest first, or what was since an event."""
    rows = connection.execute(
        f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE run_id = ? AND event_id > ? "  # noqa: S608 - fixed words
        f"AND kind IN ({', '.join('?' for _ in SINK_KINDS)}) ORDER BY event_id",
        (run_id, after_id, *SINK_KINDS),
    ).fetchall()
    return [EventView(*row) for row in rows]


def _newest(
    connection: sqlite3.Connection,
    table: str,
    key: str,
    columns: str,
    run_id: str | None,
    limit: int | None,
    after_id: int,
) -> list[Any]:
    where = "" if run_id is None else "AND run_id = ?"
    arguments: list[Any] = [after_id, *([] if run_id is None else [run_id]), -1 if limit is None else limit]
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE {key} > ? {where} ORDER BY {key} DESC LIMIT ?",  # noqa: S608 - fixed names
        arguments,
    ).fetchall()
    rows.reverse()
    return rows
