"""Reading a run for exports, in consistent pieces: its metrics lines since a position, with notes
about attempts and incidents."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

import msgspec
import orjson
from msgspec import Struct

from gputui.store.database import one_moment
from gputui.store.metrics.stored_lines import START, FilePosition, LineQuery, StoredLine, rows_between

NoteKind = Literal["attempt", "incident", "decision", "end"]
_ORDER: dict[NoteKind, int] = {"attempt": 0, "incident": 1, "decision": 2, "end": 3}


class RunGoneError(Exception):
    """The run was removed."""


class HistoryLostError(Exception):
    """The store was lost and rebuilt from files since the last read: it has another identity, or
    fewer lines."""


class Note(Struct, frozen=True):
    """A note about a run: the begin of an attempt, an incident, a decision, or the end. ``at`` is
    UTC unix seconds; ``data`` is JSON."""

    kind: NoteKind
    attempt: int
    at: float
    number: int
    data: Mapping[str, Any]


Item = StoredLine | Note


class ExportProgress(Struct, frozen=True):
    """The position of an export in a run: one per metrics file, and the last number of each kind of
    note. ``store`` is the identity of the store, None before the first read."""

    places: Mapping[str, FilePosition] = msgspec.field(default_factory=dict)
    notes: Mapping[str, int] = msgspec.field(default_factory=dict)
    store: str | None = None


class Piece(Struct, frozen=True):
    """Lines and notes since a position. ``progress`` is the next position; ``has_more``: more can
    be read already. ``state`` and ``ended_at`` are the run's; ``ended_at`` is None until the run is
    over."""

    items: Sequence[Item]
    progress: ExportProgress
    has_more: bool
    state: str
    ended_at: float | None

    @property
    def is_last(self) -> bool:
        """True if the run is over and nothing follows."""
        return self.ended_at is not None and not self.has_more


def read_piece(connection: sqlite3.Connection, run_id: str, after: ExportProgress, most_lines: int) -> Piece:
    """Read at most ``most_lines`` lines, with the notes that belong before, between and after them.
    Raises RunGoneError, HistoryLostError or sqlite3.Error."""
    with one_moment(connection):
        row = connection.execute("SELECT state, ended_at FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if row is None:
            raise RunGoneError(run_id)
        (store,) = connection.execute("SELECT identity FROM store").fetchone()
        if after.store not in (None, store):
            raise HistoryLostError(run_id)
        lines, positions, has_more = _lines(connection, run_id, after.places, most_lines)
        waiting = _notes(connection, run_id, after.notes)
    items: list[Item] = []
    newest = dict(after.notes)

    def add(note: Note) -> None:
        items.append(note)
        newest[note.kind] = max(note.number, newest.get(note.kind, 0))

    for line in lines:
        # The note of an attempt's begin precedes its lines; its other notes follow them.
        while waiting and waiting[0].attempt < line.attempt + (waiting[0].kind == "attempt"):
            add(waiting.pop(0))
        items.append(line)
    if not has_more:
        for note in waiting:
            add(note)
    state, ended_at = row
    return Piece(items, ExportProgress(positions, newest, store), has_more, state, ended_at)


def is_exported(connection: sqlite3.Connection, run_id: str, progress: ExportProgress) -> bool:
    """Return whether a run is over and nothing follows ``progress``. True for a removed run."""
    try:
        piece = read_piece(connection, run_id, progress, 1)
    except RunGoneError:
        return True
    except HistoryLostError:
        return False
    return piece.is_last and not piece.items


class SinkCursor(Struct, frozen=True):
    """The position of a sink. ``sink`` is its name in the profile, None for a person's export.
    ``position`` is the sink's own, as plain JSON; empty for a new one. ``ended_at``: the run ended
    then, and everything until then is written. Times are UTC unix seconds."""

    sink: str | None = None
    progress: ExportProgress = ExportProgress()
    position: Mapping[str, Any] = msgspec.field(default_factory=dict)
    written_at: float = 0.0
    ended_at: float | None = None


def read_cursor(connection: sqlite3.Connection, run_id: str, key: str) -> SinkCursor | None:
    """The cursor of one sink of a run; ``key`` is that of its target. Raises sqlite3.Error."""
    row = connection.execute(
        "SELECT sink, progress, position, written_at, ended_at FROM sink_cursors WHERE run_id = ? AND key = ?",
        (run_id, key),
    ).fetchone()
    if row is None:
        return None
    sink, progress, position, written_at, ended_at = row
    read = msgspec.json.decode(progress, type=ExportProgress)
    return SinkCursor(sink, read, orjson.loads(position), written_at, ended_at)


def save_cursor(connection: sqlite3.Connection, run_id: str, key: str, cursor: SinkCursor) -> None:
    """Store how far a sink is. Raises RunGoneError or sqlite3.Error."""
    saved = connection.execute(
        "INSERT OR REPLACE INTO sink_cursors SELECT run_id, ?, ?, ?, ?, ?, ? FROM runs WHERE run_id = ?",
        (
            key,
            cursor.sink,
            msgspec.json.encode(cursor.progress).decode(),
            json.dumps(dict(cursor.position)),
            cursor.written_at,
            cursor.ended_at,
            run_id,
        ),
    )
    if not saved.rowcount:
        raise RunGoneError(run_id)


def runs_with_sinks(connection: sqlite3.Connection, after: int, recent: float) -> tuple[int, list[str]]:
    """The newest state transition, and the runs with incomplete sinks that started and changed their state since.

    Args:
        after: A transition; earlier changes do not count.
        recent: Runs that have ended before this time (UTC unix seconds) do not count.

    Raises:
        sqlite3.Error: The store cannot be read.
    """
    (newest,) = connection.execute("SELECT coalesce(max(transition_id), 0) FROM transitions").fetchone()
    rows = connection.execute(
        "SELECT DISTINCT run_id FROM transitions JOIN runs USING (run_id) WHERE transition_id > ? "
        "AND (ended_at IS NULL OR ended_at > ?) AND attempt > 0 AND spec ->> '$.sinks' != '{}' "
        "AND (SELECT count(*) FROM sink_cursors AS c WHERE c.run_id = runs.run_id AND c.sink IS NOT NULL "
        "AND c.ended_at = runs.ended_at) < (SELECT count(*) FROM json_each(spec, '$.sinks'))",
        (after, recent),
    )
    return newest, [run_id for (run_id,) in rows]


def _lines(
    connection: sqlite3.Connection, run_id: str, after: Mapping[str, FilePosition], most: int
) -> tuple[list[StoredLine], dict[str, FilePosition], bool]:
    sources = connection.execute(
        "SELECT source_id, path, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    lines: list[StoredLine] = []
    positions = dict(after)
    has_more = False
    for source_id, path, generation, byte_offset in sources:
        since = after.get(path, START)
        end = (generation, byte_offset)
        if since > end:
            raise HistoryLostError(run_id)
        if since == end:
            continue
        room = most - len(lines)
        query = LineQuery("generation, byte_offset, attempt, rank, step, at, data", limit=room + 1)
        rows = rows_between(connection, source_id, since, end, query).fetchall()
        for _, _, attempt, rank, step, at, text in rows[:room]:
            lines.append(StoredLine(attempt, rank, step, at, orjson.loads(text)))
        if len(rows) > room:
            positions[path] = (rows[room][0], rows[room][1])
            has_more = True
            break
        positions[path] = end
    return lines, positions, has_more


def _notes(connection: sqlite3.Connection, run_id: str, after: Mapping[str, int]) -> list[Note]:
    attempts = connection.execute(
        "SELECT number, created_at, params, gpus, resumed_from, resumed_step FROM attempts WHERE run_id = ? "
        # The checkpoint of an attempt may be chosen only when it starts.
        "AND coalesce(started_at, first_step, ended_at) IS NOT NULL ORDER BY number",
        (run_id,),
    ).fetchall()
    notes = list(_attempts(attempts, after.get("attempt", 0)))
    notes += _incidents(connection, run_id, after.get("incident", 0))
    notes += _decisions(connection, run_id, after.get("decision", 0))
    began = [(number, created_at) for number, created_at, *_ in attempts]
    notes += _ends(connection, run_id, after.get("end", 0), began)
    return sorted(notes, key=lambda note: (note.attempt, _ORDER[note.kind], note.number))


def _incidents(connection: sqlite3.Connection, run_id: str, after: int) -> Iterator[Note]:
    rows = connection.execute(
        "SELECT incident_id, attempt, at, kind, rank, step, summary FROM incidents "
        "WHERE run_id = ? AND incident_id > ?",
        (run_id, after),
    )
    for number, attempt, at, kind, rank, step, summary in rows.fetchall():
        data = {"kind": kind, "summary": summary, "rank": rank, "step": step}
        yield Note("incident", attempt, at, number, data)


def _decisions(connection: sqlite3.Connection, run_id: str, after: int) -> Iterator[Note]:
    rows = connection.execute(
        "SELECT decision_id, attempt, at, verdict, reason, params, resume_from FROM decisions "
        "WHERE run_id = ? AND decision_id > ?",
        (run_id, after),
    )
    for number, attempt, at, verdict, reason, params, resume_from in rows.fetchall():
        name = _name_of(resume_from)
        data = {"verdict": verdict, "reason": reason, "changed": json.loads(params), "resume_from": name}
        yield Note("decision", attempt, at, number, data)


def _ends(
    connection: sqlite3.Connection, run_id: str, after: int, attempts: Sequence[tuple[int, float]]
) -> Iterator[Note]:
    """The ends of the run; each is of the newest attempt then, of all with the time of their creation."""
    rows = connection.execute(
        "SELECT transition_id, at, to_state, cause FROM transitions WHERE run_id = ? AND "
        "transition_id > ? AND to_state IN ('succeeded', 'failed', 'stopped')",
        (run_id, after),
    )
    for number, at, state, cause in rows.fetchall():
        newest = max((attempt for attempt, created_at in attempts if created_at <= at), default=0)
        yield Note("end", newest, at, number, {"state": state, "cause": cause})


def _attempts(rows: Sequence[tuple[Any, ...]], after: int) -> Iterator[Note]:
    before: dict[str, Any] | None = None
    for number, at, text, gpus, resumed_from, step in rows:
        params = json.loads(text)
        changed = {}
        if before is not None:
            changed = {name: value for name, value in params.items() if before.get(name) != value}
        before = params
        if number > after:
            name = _name_of(resumed_from)
            data = {"gpus": len(json.loads(gpus)), "resumed_from": name, "resumed_step": step, "changed": changed}
            yield Note("attempt", number, at, number, data)


def _name_of(path: str | None) -> str | None:
    if path is None:
        return None
    return PurePath(path).name
