"""Reading a run for other tools, in pieces: the lines it wrote since a place, and between them what gputui did.

A piece is read from one moment of the database, so that nothing between two pieces is missed or read twice.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import orjson

from gputui.store.database import one_moment
from gputui.store.metrics.queries import FilePosition, StoredLine

NoteKind = Literal["attempt", "incident", "decision", "end"]
_ORDER: dict[NoteKind, int] = {"attempt": 0, "incident": 1, "decision": 2, "end": 3}


class RunGoneError(Exception):
    """The run was removed."""


class HistoryLostError(Exception):
    """The store is another one than was read before, or holds less: it was lost and rebuilt from the files."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that gputui did with a run, or found out. ``at`` is UTC unix seconds; ``data`` is plain JSON."""

    kind: NoteKind
    attempt: int
    at: float
    number: int
    data: Mapping[str, Any]


Item = StoredLine | Note


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far a run was read: per metrics file a place, and of each kind of note the number of the last one. ``store``
    is the identity of the store in which these hold, None before anything was read."""

    places: Mapping[str, FilePosition] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    store: str | None = None

    def to_json(self) -> dict[str, Any]:
        places = {path: list(place) for path, place in self.places.items()}
        return {"places": places, "notes": dict(self.notes), "store": self.store}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExportProgress:
        """Raises ValueError, TypeError, KeyError or AttributeError for what `to_json` did not make."""
        places = {str(path): (int(place[0]), int(place[1])) for path, place in data["places"].items()}
        store = data["store"]
        notes = {str(kind): int(number) for kind, number in data["notes"].items()}
        return cls(places, notes, None if store is None else str(store))


@dataclass(frozen=True, slots=True)
class Piece:
    """What came since a place. ``progress`` is the next one; ``has_more``: there is more already. ``state`` and
    ``ended_at`` are the run's at that moment, ``ended_at`` None while it is not over."""

    items: Sequence[Item]
    progress: ExportProgress
    has_more: bool
    state: str
    ended_at: float | None

    @property
    def is_last(self) -> bool:
        """The run is over, and nothing follows."""
        return self.ended_at is not None and not self.has_more


def read_piece(connection: sqlite3.Connection, run_id: str, after: ExportProgress, most_lines: int) -> Piece:
    """At most so many lines, with the notes that belong before, between and behind them.

    Raises RunGoneError, HistoryLostError or sqlite3.Error.
    """
    with one_moment(connection):
        row = connection.execute("SELECT state, ended_at FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if row is None:
            raise RunGoneError(run_id)
        (store,) = connection.execute("SELECT identity FROM store").fetchone()
        if after.store not in (None, store):
            raise HistoryLostError(run_id)
        lines, places, has_more = _lines(connection, run_id, after.places, most_lines)
        waiting = _notes(connection, run_id, after.notes)
    items: list[Item] = []
    newest = dict(after.notes)

    def add(note: Note) -> None:
        items.append(note)
        newest[note.kind] = max(note.number, newest.get(note.kind, 0))

    for line in lines:
        while waiting and _comes_before(waiting[0], line.attempt):
            add(waiting.pop(0))
        items.append(line)
    if not has_more:
        for note in waiting:
            add(note)
    state, ended_at = row
    return Piece(items, ExportProgress(places, newest, store), has_more, state, ended_at)


def is_exported(connection: sqlite3.Connection, run_id: str, progress: ExportProgress) -> bool:
    """Whether a run is over and nothing of it lies behind ``progress``. True for a run that was removed."""
    try:
        piece = read_piece(connection, run_id, progress, 1)
    except RunGoneError:
        return True
    except HistoryLostError:
        return False
    return piece.is_last and not piece.items


def _comes_before(note: Note, attempt: int) -> bool:
    """Whether a note belongs before an attempt's line: its attempt has begun, or is over."""
    return note.attempt <= attempt if note.kind == "attempt" else note.attempt < attempt


def _lines(
    connection: sqlite3.Connection, run_id: str, after: Mapping[str, FilePosition], most: int
) -> tuple[list[StoredLine], dict[str, FilePosition], bool]:
    sources = connection.execute(
        "SELECT source_id, path, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    found: list[StoredLine] = []
    places = dict(after)
    has_more = False
    for source_id, path, generation, byte_offset in sources:
        since, until = after.get(path, (0, 0)), (generation, byte_offset)
        if since > until:
            raise HistoryLostError(run_id)
        if since == until:
            continue
        left = most - len(found)
        rows = connection.execute(
            "SELECT generation, byte_offset, attempt, rank, step, at, data FROM metrics WHERE source_id = ? "
            "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
            "ORDER BY generation, byte_offset LIMIT ?",
            (source_id, *since, *until, left + 1),
        ).fetchall()
        for _, _, attempt, rank, step, at, text in rows[:left]:
            found.append(StoredLine(attempt, rank, step, at, orjson.loads(text)))
        if len(rows) > left:
            places[path] = (rows[left][0], rows[left][1])
            has_more = True
            break
        places[path] = until
    return found, places, has_more


def _notes(connection: sqlite3.Connection, run_id: str, after: Mapping[str, int]) -> list[Note]:
    attempts = connection.execute(
        "SELECT number, created_at, params, gpus, resumed_from, resumed_step FROM attempts WHERE run_id = ? "
        # Where an attempt begins may be chosen when it begins.
        "AND coalesce(started_at, first_step, ended_at) IS NOT NULL ORDER BY number",
        (run_id,),
    ).fetchall()
    notes = list(_attempts(attempts, after.get("attempt", 0)))
    for number, attempt, at, kind, rank, step, summary in connection.execute(
        "SELECT incident_id, attempt, at, kind, rank, step, summary FROM incidents WHERE run_id = ? "
        "AND incident_id > ?",
        (run_id, after.get("incident", 0)),
    ).fetchall():
        data = {"kind": kind, "summary": summary, "rank": rank, "step": step}
        notes.append(Note("incident", attempt, at, number, data))
    for number, attempt, at, verdict, reason, params, resume_from in connection.execute(
        "SELECT decision_id, attempt, at, verdict, reason, params, resume_from FROM decisions WHERE run_id = ? "
        "AND decision_id > ?",
        (run_id, after.get("decision", 0)),
    ).fetchall():
        resumed = None if resume_from is None else PurePath(resume_from).name
        data = {"verdict": verdict, "reason": reason, "changed": json.loads(params), "resume_from": resumed}
        notes.append(Note("decision", attempt, at, number, data))
    for number, at, state, cause in connection.execute(
        "SELECT transition_id, at, to_state, cause FROM transitions WHERE run_id = ? AND transition_id > ? "
        "AND to_state IN ('succeeded', 'failed', 'stopped')",
        (run_id, after.get("end", 0)),
    ).fetchall():
        begun = [row[0] for row in attempts if row[1] <= at]
        notes.append(Note("end", max(begun, default=0), at, number, {"state": state, "cause": cause}))
    return sorted(notes, key=lambda note: (note.attempt, _ORDER[note.kind], note.number))


def _attempts(rows: Sequence[tuple[Any, ...]], after: int) -> Iterator[Note]:
    before: dict[str, Any] | None = None
    for number, at, text, gpus, resumed_from, resumed_step in rows:
        params = json.loads(text)
        changed = {} if before is None else {name: value for name, value in params.items() if before.get(name) != value}
        before = params
        if number > after:
            resumed = None if resumed_from is None else PurePath(resumed_from).name
            data = {
                "gpus": len(json.loads(gpus)),
                "resumed_from": resumed,
                "resumed_step": resumed_step,
                "changed": changed,
            }
            yield Note("attempt", number, at, number, data)
