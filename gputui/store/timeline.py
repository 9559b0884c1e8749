"""What was recorded when: the extent of the record, its gaps, and what happened along it.

The host is sampled whenever the recorder runs, independent of the driver, so its samples show when it ran. No function
walks through them: each looks at a few places. Times are UTC unix seconds.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import orjson

from gputui.store.rollups import bounds, first_sample, sampled_around, sampled_before

TickKind = Literal["incident", "alert", "checkpoint", "event"]

GAP_SECONDS = 10.0
"""Samples this far apart or less belong together, at any sampling interval."""

GAP_INTERVALS = 3.0
"""Samples further apart belong together when they are not more than so many times as far apart as those before."""

TOGETHER_SECONDS = 1.0
"""What happened within so short a time is one thing to look at: an incident and the event that tells of it."""

TICKS_KEPT = 400


class Span(NamedTuple):
    """A stretch of time. An end that is None is open: nothing was recorded before or after."""

    start: float | None
    end: float | None


class Tick(NamedTuple):
    """Something that happened. ``severity`` is info, warning or error."""

    at: float
    kind: TickKind
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A stretch of the record: from ``start`` to ``end``, the parts of it in which the recorder ran, and what happened,
    oldest first. ``began_at`` is when the record begins, None while there is none."""

    start: float
    end: float
    began_at: float | None = None
    recorded: tuple[tuple[float, float], ...] = ()
    ticks: tuple[Tick, ...] = ()


# --- the record and its gaps


def began_at(connection: sqlite3.Connection) -> float | None:
    """When the record begins: with the first sample, or earlier aggregates."""
    row = connection.execute(
        "SELECT min(at) FROM (SELECT ? AS at UNION ALL SELECT min(at) FROM events UNION ALL "
        "SELECT min(at) FROM transitions)",
        (first_sample(connection),),
    ).fetchone()
    return None if row[0] is None else float(row[0])


def gap_at(connection: sqlite3.Connection, at: float) -> Span | None:
    """The stretch without samples in which a moment lies; None if the recorder ran."""
    before, after = sampled_around(connection, at)
    if before is None:
        return Span(None, after)
    if not _is_gap(connection, before, at if after is None else after):
        return None
    return Span(before, after)


def recorded(
    connection: sqlite3.Connection, start: float, end: float, pieces: int = 240
) -> tuple[tuple[float, float], ...]:
    """The stretches between two moments in which the recorder ran, to about the width of one of ``pieces``."""
    width = (end - start) / pieces
    found: list[tuple[float, float]] = []
    limits = bounds(connection)
    at = sampled_around(connection, math.nextafter(start, -math.inf), limits)[1]
    while at is not None and at < end:
        # The last sample of the piece that this one lies in; the next one begins the following stretch or goes on.
        edge = min(end, start + (int((at - start) / width) + 1) * width)
        last, following = sampled_around(connection, edge, limits)
        last = max(at, last or at)
        if found and not _is_gap(connection, found[-1][1], at):
            found[-1] = (found[-1][0], last)
        else:
            found.append((at, last))
        at = following
    return tuple(found)


def _is_gap(connection: sqlite3.Connection, last: float, following: float) -> bool:
    """Whether nothing was recorded between two neighbouring samples that should have been."""
    apart = following - last
    if apart <= GAP_SECONDS:
        return False
    earlier = sampled_before(connection, last)
    return earlier is None or apart > GAP_INTERVALS * (last - earlier)


# --- what happened


def timeline(connection: sqlite3.Connection, start: float, end: float) -> Timeline:
    """The record between two moments. Raises sqlite3.Error."""
    began = began_at(connection)
    return Timeline(start, end, began, recorded(connection, start, end), ticks(connection, start, end))


def ticks(connection: sqlite3.Connection, start: float, end: float) -> tuple[Tick, ...]:
    """What happened between two moments, oldest first; of each kind the newest, if it is much."""
    found: list[Tick] = []
    for kind, severity, columns, table in _SOURCES:
        rows = connection.execute(
            f"SELECT {columns} FROM {table} WHERE at BETWEEN ? AND ? ORDER BY at DESC LIMIT ?",  # noqa: S608
            (start, end, TICKS_KEPT),
        ).fetchall()
        found += [Tick(at, kind, severity or given, text) for at, given, text in rows]
    found += _checkpoints(connection, start, end)
    return tuple(sorted(found))


_SOURCES: Sequence[tuple[TickKind, str | None, str, str]] = (
    ("incident", "error", "at, 'error', summary", "incidents"),
    ("alert", None, "at, severity, sentence", "(SELECT raised_at AS at, severity, sentence FROM alerts)"),
    ("event", None, "at, severity, message", "events"),
)


def _checkpoints(connection: sqlite3.Connection, start: float, end: float) -> list[Tick]:
    rows = connection.execute(
        "SELECT m.at, m.data FROM metric_sources AS s JOIN metrics AS m INDEXED BY metrics_with_event "
        "ON m.source_id = s.source_id AND m.at BETWEEN ? AND ? AND instr(m.data, '\"event\"') > 0 "
        "ORDER BY m.at DESC LIMIT ?",
        (start, end, TICKS_KEPT * 4),
    ).fetchall()
    found = []
    for at, data in rows:
        line = orjson.loads(data)
        if line.get("event") == "checkpoint":
            found.append(Tick(at, "checkpoint", "info", f"checkpoint at step {line.get('step', '–')}"))
    return found


# --- moving along it


def resolve(connection: sqlite3.Connection, at: float, ticks: int, direction: int, now: float) -> float:
    """The moment that is meant: ``ticks`` events, incidents or alerts on from ``at`` (negative: backwards); where
    nothing was recorded, ``direction`` leads out of the gap. Never beyond the record's begin or ``now``."""
    for _ in range(abs(ticks)):
        found = _previous_tick(connection, at) if ticks < 0 else _next_tick(connection, at)
        if found is None:
            break
        at = found
    began = began_at(connection)
    at = min(max(at, at if began is None else began), now)
    if direction and (gap := gap_at(connection, at)) is not None:
        edge = gap.start if direction < 0 else gap.end
        at = now if edge is None and direction > 0 else edge if edge is not None else at
    return at


def _previous_tick(connection: sqlite3.Connection, at: float) -> float | None:
    found = [
        connection.execute(f"SELECT max(at) FROM {table} WHERE at < ?", (at - TOGETHER_SECONDS,)).fetchone()[0]  # noqa: S608
        for _, _, _, table in _SOURCES
    ]
    return max((each for each in found if each is not None), default=None)


def _next_tick(connection: sqlite3.Connection, at: float) -> float | None:
    """The end of the next burst: what belongs together is seen together."""
    found = [
        connection.execute(f"SELECT min(at) FROM {table} WHERE at > ?", (at,)).fetchone()[0]  # noqa: S608
        for _, _, _, table in _SOURCES
    ]
    first = min((each for each in found if each is not None), default=None)
    return None if first is None else _previous_tick(connection, first + 2 * TOGETHER_SECONDS)
