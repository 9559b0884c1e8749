"""The timeline of the recorded history: extent, gaps (where the host was not sampled), incidents,
alerts and events. Times are UTC unix seconds."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Literal, NamedTuple

import orjson
from msgspec import Struct

from gputui.store.events import Severity
from gputui.store.rollups import bounds, first_sample, sampled_around

TickKind = Literal["incident", "alert", "checkpoint", "event"]

GAP_SECONDS = 10.0
"""Shorter distances of samples are no gap, at any sampling interval."""

GAP_INTERVALS = 3.0
"""Longer distances are a gap if they exceed the distance of the samples before by this factor."""

TOGETHER_SECONDS = 1.0
"""Ticks within this time count as one, such as an incident and its event."""

TICKS_KEPT = 400  # more than a wide terminal has columns

_SOURCES: Sequence[tuple[TickKind, str, str]] = (
    ("incident", "at, 'error', summary", "incidents"),
    ("alert", "at, severity, sentence", "(SELECT raised_at AS at, severity, sentence FROM alerts)"),
    ("event", "at, severity, message", "events"),
)


class Span(NamedTuple):
    """A time span. None is an open end: nothing was recorded before or after."""

    start: float | None
    end: float | None


class Tick(NamedTuple):
    """An incident, alert, checkpoint or event."""

    at: float
    kind: TickKind
    severity: Severity
    text: str


class Timeline(Struct, frozen=True):
    """The history from ``start`` to ``end``: the spans in which the recorder ran, and ticks, oldest
    first. ``began_at`` is the begin of the whole history, None without any."""

    start: float
    end: float
    began_at: float | None = None
    recorded: tuple[tuple[float, float], ...] = ()
    ticks: tuple[Tick, ...] = ()


# --- extent and gaps


def began_at(connection: sqlite3.Connection) -> float | None:
    """The begin of the history: the first sample, rollup, event or transition."""
    row = connection.execute(
        "SELECT min(at) FROM (SELECT ? AS at UNION ALL SELECT min(at) FROM events UNION ALL "
        "SELECT min(at) FROM transitions)",
        (first_sample(connection),),
    ).fetchone()
    if row[0] is None:
        return None
    return float(row[0])


def gap_at(connection: sqlite3.Connection, at: float) -> Span | None:
    """The gap that contains a time; None if the recorder ran."""
    before, after = sampled_around(connection, at)
    if before is None:
        return Span(None, after)
    end = at if after is None else after
    if not _is_gap(connection, before, end):
        return None
    return Span(before, after)


def recorded(
    connection: sqlite3.Connection, start: float, end: float, pieces: int = 240
) -> tuple[tuple[float, float], ...]:
    """The spans in which the recorder ran, with a resolution of about one of ``pieces``."""
    width = (end - start) / pieces
    spans: list[tuple[float, float]] = []
    limits = bounds(connection)
    at = sampled_around(connection, math.nextafter(start, -math.inf), limits).after
    while at is not None and at < end:
        # The last sample in this piece. The next sample either continues the span or begins a new
        # one.
        edge = min(end, start + (int((at - start) / width) + 1) * width)
        last, following = sampled_around(connection, edge, limits)
        last = max(at, last or at)
        if spans and not _is_gap(connection, spans[-1][1], at):
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((at, last))
        at = following
    return tuple(spans)


def _is_gap(connection: sqlite3.Connection, last: float, following: float) -> bool:
    """Return whether samples are missing between two neighbouring ones."""
    apart = following - last
    if apart <= GAP_SECONDS:
        return False
    earlier = sampled_around(connection, math.nextafter(last, -math.inf)).before
    return earlier is None or apart > GAP_INTERVALS * (last - earlier)


# --- ticks


def timeline(connection: sqlite3.Connection, start: float, end: float) -> Timeline:
    """The timeline between two times. Raises sqlite3.Error."""
    began = began_at(connection)
    return Timeline(start, end, began, recorded(connection, start, end), ticks(connection, start, end))


def ticks(connection: sqlite3.Connection, start: float, end: float) -> tuple[Tick, ...]:
    """Ticks between two times, oldest first; at most TICKS_KEPT of each kind, the newest."""
    timeline_ticks: list[Tick] = []
    for kind, columns, table in _SOURCES:
        rows = connection.execute(
            f"SELECT {columns} FROM {table} WHERE at BETWEEN ? AND ? ORDER BY at DESC LIMIT ?",  # noqa: S608
            (start, end, TICKS_KEPT),
        ).fetchall()
        timeline_ticks += [Tick(at, kind, severity, text) for at, severity, text in rows]
    timeline_ticks += _checkpoints(connection, start, end)
    return tuple(sorted(timeline_ticks))


def _checkpoints(connection: sqlite3.Connection, start: float, end: float) -> list[Tick]:
    rows = connection.execute(
        "SELECT m.at, m.data FROM metric_sources AS s JOIN metrics AS m INDEXED BY metrics_with_event "
        "ON m.source_id = s.source_id AND m.at BETWEEN ? AND ? AND instr(m.data, '\"event\"') > 0 "
        "ORDER BY m.at DESC LIMIT ?",
        (start, end, TICKS_KEPT * 4),
    ).fetchall()
    lines = [(at, orjson.loads(data)) for at, data in rows]
    return [
        Tick(at, "checkpoint", "info", f"checkpoint at step {line.get('step', '–')}")
        for at, line in lines
        if line.get("event") == "checkpoint"
    ]


# --- navigation


def resolve(connection: sqlite3.Connection, at: float, moves: int, direction: int, now: float) -> float:
    """The time that is ``moves`` events, incidents or alerts after ``at`` (negative: before it). In
    a gap, ``direction`` (-1, 0 or 1) moves to its edge. The result is within the history and not
    after ``now``."""
    for _ in range(abs(moves)):
        tick_at: float | None = at
        if moves > 0:
            tick_at = _tick(connection, at, after=True)
        if tick_at is not None:
            # The last of those that count as one.
            tick_at = _tick(connection, tick_at + math.copysign(TOGETHER_SECONDS, moves), after=False)
        if tick_at is None:
            break
        at = tick_at
    if (began := began_at(connection)) is not None:
        at = max(at, began)
    at = min(at, now)
    if not direction or (gap := gap_at(connection, at)) is None:
        return at
    if direction > 0:
        return now if gap.end is None else gap.end
    return at if gap.start is None else gap.start


def _tick(connection: sqlite3.Connection, at: float, *, after: bool) -> float | None:
    """The time of the first tick after a time, or of the last one before it."""
    what = "max(at) FROM {} WHERE at <"
    nearest = max
    if after:
        what = "min(at) FROM {} WHERE at >"
        nearest = min
    queries = [f"SELECT {what.format(table)} ?" for _, _, table in _SOURCES]
    times = [connection.execute(query, (at,)).fetchone()[0] for query in queries]
    return nearest((time for time in times if time is not None), default=None)
