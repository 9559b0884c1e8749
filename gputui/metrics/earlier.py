"""What is stored of the earlier versions of a rewritten file.

A file that was rewritten is read from its start as the next generation. Of its lines only values
are stored that no earlier version had. A value of an earlier version is dropped if the newest one
has another for the same attempt, rank, step and name; one that it does not have at all stays.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import orjson

from gputui.metrics.batch import SourceState
from gputui.store.metrics.queries import NOT_METRICS, FilePosition

Connect = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""A connection to the store for the thread that reads."""


class EarlierLines:
    """The places of one source's lines of earlier versions that the newest version does not have so
    far, by rank, step and epoch, or by the text of a line without a step."""

    def __init__(self, source_id: int, connect: Connect) -> None:
        self._source_id = source_id
        self._connect = connect
        self._versions: tuple[int, int] | None = None
        self._places: dict[object, list[FilePosition]] = {}
        # After a restart amid a version, which lines it has is not known: none is dropped.
        self._is_whole = False
        # What the newest batch found, which may not be stored after all.
        self._begun: FilePosition | None = None
        self._taken: list[tuple[object, FilePosition]] = []

    @contextmanager
    def comparison(self, state: SourceState, attempt: int) -> Iterator[LineComparison]:
        """Compare the lines of one batch, those after ``state``. Raises sqlite3.Error."""
        with self._connect() as connection:
            if self._versions != (state.first_generation, state.generation):
                self._load(connection, state)
            elif self._begun == state.position:
                for key, place in self._taken:
                    self._places.setdefault(key, []).append(place)
            self._begun, self._taken = state.position, []
            yield LineComparison(connection, self._source_id, attempt, self)

    def lines_of(self, key: object) -> list[FilePosition]:
        return self._places.get(key, [])

    def take(self, key: object, place: FilePosition) -> None:
        """Note that the newest version has this line."""
        self._places[key].remove(place)
        self._taken.append((key, place))

    @property
    def may_drop(self) -> bool:
        return self._is_whole

    def _load(self, connection: sqlite3.Connection, state: SourceState) -> None:
        self._versions = state.first_generation, state.generation
        self._is_whole = not state.byte_offset
        self._places = {}
        rows = connection.execute(
            "SELECT generation, byte_offset, rank, step, iif(step IS NULL, data, data ->> '$.epoch') FROM metrics "
            "WHERE source_id = ? AND generation >= ? AND generation < ?",
            (self._source_id, *self._versions),
        )
        for generation, offset, rank, step, other in rows:
            self._places.setdefault((rank, step, other), []).append((generation, offset))


_SCALARS = (int, float, str)


class _Stored(NamedTuple):
    place: FilePosition
    attempt: int
    values: dict[str, Any]


class LineComparison:
    """Compares the lines of one batch. ``replaced`` is what is left of stored lines, by position,
    after values were dropped from them."""

    def __init__(self, connection: sqlite3.Connection, source_id: int, attempt: int, earlier: EarlierLines) -> None:
        self.replaced: dict[FilePosition, dict[str, Any]] = {}
        self._connection = connection
        self._source_id = source_id
        self._attempt = attempt
        self._earlier = earlier

    def unknown(
        self, rank: int | None, step: int | None, values: Mapping[str, Any], data: str
    ) -> Mapping[str, Any] | None:
        """The part of a line that is not stored yet; None if all of it is."""
        epoch = values.get("epoch")
        key = rank, step, data if step is None else epoch if isinstance(epoch, _SCALARS) else None
        stored = [self._line(place) for place in self._earlier.lines_of(key)]
        if not stored:
            return values
        is_event = step is None or "event" in values
        new = {name for name in values if is_event or name not in NOT_METRICS}
        for line in stored:
            shared = new & line.values.keys()
            if shared and all(line.values[name] == values[name] for name in shared):
                if is_event and line.values != values:
                    continue
                self._earlier.take(key, line.place)
                new -= shared
        if not new:
            return None
        if is_event:
            return values
        for line in stored:
            changed = new & line.values.keys()
            # What another attempt measured at this step stays.
            if changed and line.attempt == self._attempt and self._earlier.may_drop:
                kept = {name: value for name, value in line.values.items() if name not in changed}
                self.replaced[line.place] = kept
                if line.place in self._earlier.lines_of(key):
                    self._earlier.take(key, line.place)
        return {name: value for name, value in values.items() if name in NOT_METRICS or name in new}

    def _line(self, place: FilePosition) -> _Stored:
        """A stored line, as it is after what was replaced so far."""
        attempt, data = self._connection.execute(
            "SELECT attempt, data FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset = ?",
            (self._source_id, *place),
        ).fetchone() or (0, "{}")
        return _Stored(place, attempt, self.replaced.get(place) or orjson.loads(data))
