"""Compare a file that was written again with what is stored of its earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from gputui.store.metrics.queries import NOT_METRICS, FilePosition

if TYPE_CHECKING:
    from gputui.metrics.batch import SourceState

_SCALARS = (int, float, str)


class EarlierLines:
    """What is stored of the earlier versions of a rewritten file: of its newest version, only values
    are stored that none of these had. ``connect`` opens the store for the thread that reads."""

    def __init__(self, source_id: int, connect: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        self._source_id = source_id
        self._connect = connect
        self._compared: tuple[int, int, int] | None = None
        # Where the attempt resumed, in its first version of the file: later steps are its own.
        self._resumed_step: int | None = None
        # The lines that the newest version does not have so far, by rank, step and epoch, or by the
        # text of a line without a step.
        self._places: dict[object, list[FilePosition]] = {}

    @contextmanager
    def comparison(self, state: SourceState, attempt: int) -> Iterator[EarlierLines]:
        """Compare the lines of one batch, those after ``state``; call `forget` if it is not stored.
        Raises sqlite3.Error."""
        with self._connect() as self._connection:
            if self._compared != (state.first_generation, state.generation, attempt):
                self._load(state, attempt)
            yield self

    def forget(self) -> None:
        """Read what is stored again for the next comparison."""
        self._compared = None

    def is_resumed(self, attempt: int) -> bool:
        """Whether an attempt began from a checkpoint, so that its script may write the lines before
        that again. Raises sqlite3.Error."""
        with self._connect() as connection:
            return self._base_of(connection, attempt)[0] is not None

    def _base_of(self, connection: sqlite3.Connection, attempt: int) -> tuple[str | None, int | None]:
        """The checkpoint that an attempt resumed from, and its step."""
        row: tuple[str | None, int | None] | None = connection.execute(
            "SELECT resumed_from, resumed_step FROM attempts JOIN metric_sources USING (run_id) "
            "WHERE source_id = ? AND number = ?",
            (self._source_id, attempt),
        ).fetchone()
        return row or (None, None)

    def unknown(
        self, rank: int | None, step: int | None, values: Mapping[str, Any], data: str
    ) -> Mapping[str, Any] | None:
        """The part of a line that is not stored yet; None if all of it is."""
        if step is not None and self._resumed_step is not None and step > self._resumed_step:
            return values
        epoch = values.get("epoch")
        key = rank, step, data if step is None else epoch if isinstance(epoch, _SCALARS) else None
        places = self._places.get(key, [])
        is_event = step is None or "event" in values
        new = {name for name in values if is_event or name not in NOT_METRICS}
        for place in list(places):
            before = self._values(place)
            shared = new & before.keys()
            if not shared or any(before[name] != values[name] for name in shared):
                continue
            if not is_event or before == values:
                places.remove(place)
                new -= shared
        if not new:
            return None
        if is_event:
            return values
        known = values.keys() - NOT_METRICS - new
        return {name: value for name, value in values.items() if name not in known} if known else values

    def _values(self, place: FilePosition) -> dict[str, Any]:
        (data,) = self._connection.execute(
            "SELECT data FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset = ?",
            (self._source_id, *place),
        ).fetchone()
        values: dict[str, Any] = orjson.loads(data)
        return values

    def _load(self, state: SourceState, attempt: int) -> None:
        versions = state.first_generation, state.generation
        self._compared = (*versions, attempt)
        self._places = {}
        rows = self._connection.execute(
            "SELECT generation, byte_offset, attempt, rank, step, "
            "iif(step IS NULL, data, data ->> '$.epoch') FROM metrics "
            "WHERE source_id = ? AND generation >= ? AND generation < ?",
            (self._source_id, *versions),
        )
        has_own = False
        for generation, offset, number, rank, step, other in rows:
            self._places.setdefault((rank, step, other), []).append((generation, offset))
            has_own = has_own or number == attempt
        self._resumed_step = None if has_own else self._base_of(self._connection, attempt)[1]
