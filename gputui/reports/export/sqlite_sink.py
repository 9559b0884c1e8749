"""SQLite: a file of one run with a table for each kind of data and foreign keys, rewritten as a whole.

sqlite-utils creates the tables; plain statements fill them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import IO, Any

from msgspec import Struct

from gputui.core.redaction import redact_params
from gputui.reports.export.sink import cleaned
from gputui.reports.export.subject import Subject
from gputui.reports.export.whole_file import WholeFileSink
from gputui.store.database import one_moment

Row = Sequence[Any]


class _Table(Struct, frozen=True):
    """``columns`` with their types (bytes: any), the primary key, and the tables that columns refer to. ``query``
    selects the columns of a run from gputui's database; tables without one are computed."""

    columns: Mapping[str, type]
    key: str | None = None
    refers: Mapping[str, str] | None = None
    query: str = ""
    indexes: tuple[tuple[str, ...], ...] = ()


_SAMPLE = {
    "utilization_percent": float, "memory_used_bytes": int, "temperature_celsius": float, "power_watts": float,
    "sm_clock_mhz": float,
}  # fmt: skip

# In the order of creation: a table follows those that it refers to.
TABLES: Mapping[str, _Table] = {
    "runs": _Table(
        {"run_id": str, "name": str, "profile": str, "state": str, "priority": int, "created_at": float,
         "started_at": float, "ended_at": float, "reason": str}, "run_id",
        query="SELECT run_id, name, profile, state, priority, created_at, started_at, ended_at, reason FROM runs "
        "WHERE run_id = :run_id",
    ),
    "attempts": _Table(
        {"attempt": int, "run_id": str, "state": str, "created_at": float, "started_at": float,
         "first_step_at": float, "ended_at": float, "exit_code": int, "exit_signal": int, "resumed_from": str,
         "resumed_step": int, "first_step": int, "last_step": int}, "attempt", {"run_id": "runs"},
        query="SELECT number, run_id, state, created_at, started_at, first_step_at, ended_at, exit_code, exit_signal, "
        "resumed_from, resumed_step, first_step, last_step FROM attempts WHERE run_id = :run_id",
    ),
    "params": _Table({"attempt": int, "name": str, "value": bytes}, None, {"attempt": "attempts"}),
    "gpus": _Table(
        {"uuid": str, "position": int, "name": str}, "uuid",
        query="SELECT uuid, position, name FROM gpus WHERE uuid IN "
        "(SELECT value FROM attempts, json_each(gpus) WHERE run_id = :run_id)",
    ),
    "attempt_gpus": _Table(
        {"attempt": int, "gpu_uuid": str, "energy_joules": float}, None, {"attempt": "attempts", "gpu_uuid": "gpus"},
        query="SELECT number, g.uuid, e.energy_joules FROM attempts AS a JOIN json_each(a.gpus) AS j "
        "JOIN gpus AS g ON g.uuid = j.value LEFT JOIN attempt_energy AS e "
        "ON e.run_id = a.run_id AND e.attempt = a.number AND e.gpu_uuid = g.uuid WHERE a.run_id = :run_id",
    ),
    "metrics": _Table(
        {"attempt": int, "rank": int, "step": int, "at": float, "name": str, "value": float, "not_finite": str},
        None, {"attempt": "attempts"}, indexes=(("name", "step"),),
    ),
    "incidents": _Table(
        {"incident_id": int, "attempt": int, "at": float, "kind": str, "rank": int, "step": int, "summary": str,
         "evidence": str}, "incident_id", {"attempt": "attempts"},
        query="SELECT incident_id, attempt, at, kind, rank, step, summary, evidence FROM incidents "
        "WHERE run_id = :run_id",
    ),
    "decisions": _Table(
        {"decision_id": int, "incident_id": int, "attempt": int, "at": float, "rung": int, "verdict": str,
         "actions": str, "params": str, "resume_from": str, "delay_seconds": float, "reason": str, "outcome": str},
        "decision_id", {"incident_id": "incidents", "attempt": "attempts"},
        query="SELECT decision_id, incident_id, attempt, at, rung, verdict, actions, params, resume_from, "
        "delay_seconds, reason, outcome FROM decisions WHERE run_id = :run_id",
    ),
    "observations": _Table(
        {"observation_id": int, "attempt": int, "at": float, "kind": str, "rank": int, "step": int, "text": str},
        "observation_id", {"attempt": "attempts"},
        query="SELECT observation_id, attempt, at, kind, rank, step, text FROM observations WHERE run_id = :run_id",
    ),
    "transitions": _Table(
        {"transition_id": int, "run_id": str, "at": float, "from_state": str, "to_state": str, "cause": str,
         "actor": str}, "transition_id", {"run_id": "runs"},
        query="SELECT transition_id, run_id, at, from_state, to_state, cause, actor FROM transitions "
        "WHERE run_id = :run_id",
    ),
    "events": _Table(
        {"event_id": int, "attempt": int, "at": float, "kind": str, "key": str, "severity": str, "message": str},
        "event_id", {"attempt": "attempts"},
        query="SELECT event_id, attempt, at, kind, key, severity, message FROM events WHERE run_id = :run_id",
    ),
    "alerts": _Table(
        {"alert_id": int, "run_id": str, "rule": str, "severity": str, "subject": str, "raised_at": float,
         "cleared_at": float, "value": float, "threshold": float, "unit": str, "sentence": str}, "alert_id",
        {"run_id": "runs"},
        query="SELECT alert_id, run_id, rule, severity, subject_name, raised_at, cleared_at, value, threshold, unit, "
        "sentence FROM alerts WHERE run_id = :run_id",
    ),
    "checkpoints": _Table(
        {"path": str, "attempt": int, "step": int, "origin": str, "verdict": str, "why": str, "size_bytes": int,
         "modified_at": float}, "path", {"attempt": "attempts"},
        query="SELECT path, attempt, step, origin, verdict, why, size_bytes, modified_at FROM checkpoints "
        "WHERE run_id = :run_id AND gone_at IS NULL",
    ),
    "samples": _Table(
        {"attempt": int, "gpu_uuid": str, "at": float, "span_seconds": float, **_SAMPLE, "throttled": float}, None,
        {"attempt": "attempts", "gpu_uuid": "gpus"}, indexes=(("gpu_uuid", "at"),),
    ),
}  # fmt: skip

# The samples of each attempt's GPUs, and minutes from before the oldest sample.
_SAMPLES = f"""
WITH held AS (
    SELECT a.number AS attempt, g.gpu_id, g.uuid, coalesce(a.started_at, a.created_at) AS since,
        coalesce(a.ended_at, 1e18) AS until
    FROM attempts AS a JOIN json_each(a.gpus) AS j JOIN gpus AS g ON g.uuid = j.value WHERE a.run_id = :run_id
)
SELECT h.attempt, h.uuid, m.at, 60.0, {", ".join(f"m.{name}_mean" for name in _SAMPLE)}, m.throttled_fraction
FROM held AS h JOIN gpu_minutes AS m ON m.gpu_id = h.gpu_id AND m.at >= h.since - 60 AND m.at < h.until
    AND m.at + 60 <= (SELECT coalesce(min(at), 1e18) FROM gpu_samples WHERE gpu_id = h.gpu_id)
UNION ALL
SELECT h.attempt, h.uuid, s.at, 0.0, {", ".join(f"s.{name}" for name in _SAMPLE)},
    CASE WHEN s.throttle_reasons IS NOT NULL THEN s.throttle_reasons <> '[]' END
FROM held AS h JOIN gpu_samples AS s ON s.gpu_id = h.gpu_id AND s.at >= h.since AND s.at < h.until
"""  # noqa: S608 - fixed words


class SqliteSink(WholeFileSink):
    """A SQLite file with TABLES."""

    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        """Fill all tables. Also raises sqlite3.Error."""
        import sqlite_utils

        written = 0
        with closing(sqlite_utils.Database(file.name)) as made, one_moment(subject.connection):
            for name, table in TABLES.items():
                refers = [(column, other) for column, other in (table.refers or {}).items()]
                made.table(name).create(dict(table.columns), pk=table.key, foreign_keys=refers)
                rows = _rows(subject, name, table)
                if "attempt" in table.columns and name != "attempts":
                    rows = _without_lost_attempts(rows, list(table.columns).index("attempt"), _attempts(made))
                places = ", ".join("?" for _ in table.columns)
                with made.conn:
                    cursor = made.conn.executemany(
                        f"INSERT INTO [{name}] VALUES ({places})",  # noqa: S608 - fixed words
                        rows,
                    )
                    written += max(0, cursor.rowcount)
                for index in table.indexes:
                    made.table(name).create_index(index)
        return written


def _rows(subject: Subject, name: str, table: _Table) -> Iterator[Row]:
    about = {"run_id": subject.run.run_id}
    if name == "metrics":
        yield from _metrics(subject)
    elif name == "params":
        rows = subject.connection.execute("SELECT number, params FROM attempts WHERE run_id = :run_id", about)
        for attempt, text in rows:
            for key, value in redact_params(json.loads(text)).items():
                yield attempt, key, _plain(value)
    elif name == "samples":
        yield from subject.connection.execute(_SAMPLES, about)
    else:
        for row in subject.connection.execute(table.query, about):
            yield [cleaned(value) if isinstance(value, str) else value for value in row]


def _metrics(subject: Subject) -> Iterator[Row]:
    """SQLite has no NaN, so non-finite values are named in a separate column, and means ignore them."""
    wanted = frozenset(subject.wanted)
    shown: dict[str, str] = {}
    for line in subject.lines():
        for name, value in line.numbers().items():
            if wanted and name not in wanted:
                continue
            if name not in shown:
                shown[name] = cleaned(name)
            word = None
            if value - value != 0:
                word = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
            yield line.attempt, line.rank, line.step, line.at, shown[name], None if word else value, word


def _attempts(made: Any) -> frozenset[int]:
    return frozenset(number for (number,) in made.conn.execute("SELECT attempt FROM attempts"))


def _without_lost_attempts(rows: Iterator[Row], position: int, known: frozenset[int]) -> Iterator[Row]:
    """Replace unknown attempts, from a history that was lost, by NULL."""
    for row in rows:
        yield row if row[position] in known else (*row[:position], None, *row[position + 1 :])


def _plain(value: Any) -> Any:
    return cleaned(value) if value is None or isinstance(value, str | int | float) else json.dumps(cleaned(value))
