"""The source that each metric of a run is taken from, where several have its name."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from enum import IntEnum
from functools import partial

import orjson

from gputui.metrics.formats import HISTORY, Reading
from gputui.store.metrics.stored_lines import NOT_METRICS

# A source with more lines keeps its names: what people have looked at for hours does not change its meaning.
MAX_REMOVED_LINES = 2000
_MEASURE_NOTHING = NOT_METRICS | {"epoch", "total_steps", "event", "phase"}


class Exactness(IntEnum):
    """How exact the steps and values of a source are. A file that counts in epochs, or is written with checkpoints
    alone, has fewer of them than the output, whose values are rounded."""

    RARE = 0
    PRINTED = 1
    FILE = 2

    @classmethod
    def of(cls, kind: str, reading: Reading) -> Exactness:
        """The exactness of a kind of source."""
        if kind in ("stdout", "output"):
            return cls.PRINTED
        if kind == HISTORY or reading.step in ("epoch", "epochs"):
            return cls.RARE
        return cls.FILE


class _Names:
    """The names that a source has stored, and those that it leaves to others."""

    def __init__(self, source_id: int, kind: str, exactness: Exactness) -> None:
        self.source_id = source_id
        self.kind = kind
        self.exactness = exactness
        self.stored: set[str] = set()
        self.refused: set[str] = set()

    def beats(self, rival: _Names) -> bool:
        """Return whether names that both have are this one's: it is more exact, or as exact in another form and was
        there first. The files of one form may be those of several attempts."""
        if self.exactness is not rival.exactness:
            return self.exactness > rival.exactness
        is_other_form = self.exactness is Exactness.FILE and self.kind != rival.kind
        return is_other_form and self.source_id < rival.source_id


class NameOwners:
    """The owner of each name of one run: the better source (`_Names.beats`). Methods raise sqlite3.Error."""

    def __init__(self) -> None:
        self._sources: dict[int, _Names] = {}
        self._is_read = True

    def refused(self, source_id: int) -> Collection[str]:
        """The names that a source leaves to others; the collection changes with later lines."""
        return self._sources[source_id].refused

    def forget(self) -> None:
        """Forget what was taken in since the last transaction, which failed."""
        self._is_read = False

    def __contains__(self, source_id: int) -> bool:
        return source_id in self._sources

    def add_source(self, source_id: int, kind: str, reading: Reading) -> None:
        """Add a source, if it is new; call `refresh` afterwards."""
        if source_id not in self._sources:
            self._sources[source_id] = _Names(source_id, kind, Exactness.of(kind, reading))
            self._is_read = False

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read what is stored, if a source is new or a transaction failed."""
        if self._is_read:
            return
        for source_id, source in self._sources.items():
            rows = connection.execute("SELECT data FROM metric_newest WHERE source_id = ?", (source_id,))
            source.stored = {name for (data,) in rows for name in orjson.loads(data)} - _MEASURE_NOTHING
            source.refused.clear()
        for source in self._sources.values():
            for another in self._sources.values():
                if another.beats(source):
                    source.refused |= another.stored - source.stored
                    another.refused |= another.stored & source.stored
        self._is_read = True

    def take(self, connection: sqlite3.Connection, source_id: int, names: Collection[str]) -> set[int]:
        """Take in the names of lines that a source has just stored, inside the caller's transaction.

        Returns:
            The sources from which values were removed, because the owner of a name has changed.
        """
        source = self._sources[source_id]
        new = set(names) - source.stored - _MEASURE_NOTHING
        changed: set[int] = set()
        if not new:
            return changed
        source.stored |= new
        for number, another in self._sources.items():
            if not source.beats(another):
                continue
            shared = new & another.stored
            if not shared:
                another.refused |= new
                continue
            loser = number
            if _line_count(connection, number) > MAX_REMOVED_LINES:
                loser = source_id
            _remove(connection, loser, shared)
            self._sources[loser].stored -= shared
            self._sources[loser].refused |= shared
            another.refused |= new - shared
            changed.add(loser)
        return changed


def _line_count(connection: sqlite3.Connection, source_id: int) -> int:
    (count,) = connection.execute(
        "SELECT line_count FROM metric_sources WHERE source_id = ?", (source_id,)
    ).fetchone() or (0,)
    return int(count)


def _remove(connection: sqlite3.Connection, source_id: int, names: set[str]) -> None:
    """Remove the values of some names from all stored lines of a source."""
    # SQLite's json_remove cannot name a key that contains a quotation mark.
    connection.create_function("without_names", 1, partial(_without, names))
    connection.execute("UPDATE metrics SET data = without_names(data) WHERE source_id = ?", (source_id,))
    connection.execute("UPDATE metric_newest SET data = without_names(data) WHERE source_id = ?", (source_id,))
    connection.executemany(
        "DELETE FROM metric_envelopes WHERE source_id = ? AND name = ?", [(source_id, name) for name in names]
    )


def _without(names: Collection[str], data: str) -> str:
    return orjson.dumps({name: value for name, value in orjson.loads(data).items() if name not in names}).decode()
