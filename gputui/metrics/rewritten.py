"""Store of a rewritten file only what its earlier versions did not have.

A script may write its metrics file again as a whole: with another column, with its last lines
alone, or with some lines changed. Each version is a generation of the source, read from its start.
`VersionComparison` subtracts the stored lines of the earlier versions from the lines of the new one:

    stored of earlier versions    line of the new version                  stored of it
    {"step": 1, "loss": 0.5}      {"step": 1, "loss": 0.5}                 nothing
    {"step": 2, "loss": 0.4}      {"step": 2, "loss": 0.4, "val": 0.6}     {"step": 2, "val": 0.6}
    {"step": 3, "loss": 0.3}      {"step": 3, "loss": 0.2}                 the whole line
    {"step": 4, "a": 1, "b": 2}   {"step": 4, "a": 1, "b": 3}              {"step": 4, "b": 3}

An output that is read again, because the form of its lines is known now, is the same file: there a line is known by its
place, and what it is taken for now corrects what is stored of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gputui.metrics.contract import ParsedLine
from gputui.store.metrics.stored_lines import NOT_METRICS, FilePosition

if TYPE_CHECKING:
    from gputui.metrics.source_state import SourceState


class _LineKey(NamedTuple):
    """The identity of a line, the same in every version of a file. Steps may begin again in each
    epoch; a line without a step is identified by its text."""

    rank: int | None
    step: int | None
    epoch: float | str | None
    text: str | None

    @classmethod
    def of(cls, rank: int | None, step: int | None, data: str, values: Mapping[str, Any]) -> _LineKey:
        if step is None:
            return cls(rank, None, None, data)
        epoch = values.get("epoch")
        if not isinstance(epoch, int | float | str):
            epoch = None
        return cls(rank, step, epoch, None)


class _StoredLine(NamedTuple):
    position: FilePosition
    attempt: int


class Correction(NamedTuple):
    """What a stored line is taken for now: its new step and text; no text if it is no metrics line."""

    position: FilePosition
    step: int | None = None
    data: str | None = None


class EarlierLines:
    """The stored lines of the earlier versions of a source's file, loaded once for each version and attempt.

    Attributes:
        is_same_file: The versions are readings of one file.
        at_places: Of one file, the lines that the new reading has not reached, by byte offset.
        is_corrected: Some of these were other lines than was thought.
        unmatched: Of versions, the lines that no line of the newest one has matched yet, by key.
        resumed_step: Steps after it are new in any case; None to compare all.
    """

    def __init__(
        self,
        source_id: int,
        connect: Callable[[], AbstractContextManager[sqlite3.Connection]],
        *,
        is_same_file: bool = False,
    ) -> None:
        """``connect`` opens the store for the thread that reads."""
        self.source_id = source_id
        self._connect = connect
        self.is_same_file = is_same_file
        self.at_places: dict[int, _StoredLine] = {}
        self.is_corrected = False
        self.unmatched: dict[_LineKey, list[_StoredLine]] = {}
        self.resumed_step: int | None = None
        # The first generation, the generation and the attempt that these two were loaded for.
        self._loaded: tuple[int, int, int] | None = None

    @contextmanager
    def comparison(self, state: SourceState, attempt: int) -> Iterator[VersionComparison]:
        """Compare the lines of one batch, those after ``state``; call `forget` if it is not stored.
        Raises sqlite3.Error."""
        with self._connect() as connection:
            versions = (state.first_generation, state.generation, attempt)
            if self._loaded != versions:
                self._load(connection, *versions)
                self._loaded = versions
                # Those before were compared by a former agent.
                self.at_places = {at: line for at, line in self.at_places.items() if at >= state.byte_offset}
            yield VersionComparison(connection, self, attempt, [])

    def is_passed(self, state: SourceState, attempt: int) -> bool:
        """Return whether nothing is left to compare: the new reading of the same file has passed all stored lines."""
        is_loaded = self._loaded == (state.first_generation, state.generation, attempt)
        return is_loaded and self.is_same_file and not self.at_places and not self.is_corrected

    def forget(self) -> None:
        """Load the lines again for the next comparison."""
        self._loaded = None

    def is_resumed(self, attempt: int) -> bool:
        """Return whether an attempt began from a checkpoint, so that its script may write the lines
        before that again. Raises sqlite3.Error."""
        with self._connect() as connection:
            return self._checkpoint_of(connection, attempt)[0] is not None

    def _checkpoint_of(self, connection: sqlite3.Connection, attempt: int) -> tuple[str | None, int | None]:
        """The checkpoint that an attempt resumed from, and its step."""
        row: tuple[str | None, int | None] | None = connection.execute(
            "SELECT resumed_from, resumed_step FROM attempts JOIN metric_sources USING (run_id) "
            "WHERE source_id = ? AND number = ?",
            (self.source_id, attempt),
        ).fetchone()
        return row or (None, None)

    def _load(self, connection: sqlite3.Connection, first_generation: int, generation: int, attempt: int) -> None:
        """Load the lines of the generations before ``generation``."""
        self.unmatched = {}
        self.at_places = {}
        rows = connection.execute(
            "SELECT generation, byte_offset, attempt, rank, step, data FROM metrics "
            "WHERE source_id = ? AND generation >= ? AND generation < ?",
            (self.source_id, first_generation, generation),
        )
        has_own = False
        for line_generation, offset, number, rank, step, data in rows:
            line = _StoredLine((line_generation, offset), number)
            if self.is_same_file:
                self.at_places[offset] = line
            else:
                key = _LineKey.of(rank, step, data, orjson.loads(data))
                self.unmatched.setdefault(key, []).append(line)
            has_own = has_own or number == attempt
        # Nothing is stored of this attempt: all after its checkpoint is new, also if it is as before.
        self.resumed_step = None
        if not has_own:
            _, self.resumed_step = self._checkpoint_of(connection, attempt)


class VersionComparison(NamedTuple):
    """A comparison of lines, one after another, with the stored lines of earlier versions. ``corrections`` are to be
    stored with the new lines."""

    connection: sqlite3.Connection
    earlier: EarlierLines
    attempt: int
    corrections: list[Correction]

    def take_new_part(self, offset: int, parsed: ParsedLine) -> tuple[str, Mapping[str, Any]] | None:
        """The part of the line at a byte offset to store, encoded and decoded; None if all of it is stored already.

        - A stored line matches if its `_LineKey` is the same and all metrics that both have are
          equal. The line is stored without these metrics, but with its step, time and rank.
        - Of the same attempt, a stored line with other values matches too: the line is a changed
          one, and only what changed is stored.
        - A line with an event, or without a step, matches only as a whole.
        - A stored line matches once: a line that the file has twice is stored twice.

        Raises sqlite3.Error.
        """
        step, _, rank, data, values, _ = parsed
        if self.earlier.is_same_file:
            line = self.earlier.at_places.pop(offset, None)
            if line is None:
                return data, values
            if self._stored_values(line) != values:
                self._correct(Correction(line.position, step, data))
            return None
        resumed_step = self.earlier.resumed_step
        if step is not None and resumed_step is not None and step > resumed_step:
            return data, values
        unmatched = self.earlier.unmatched.get(_LineKey.of(rank, step, data, values), [])
        if step is None or "event" in values:
            if self._take_equal(unmatched, values):
                return None
            return data, values
        known_names = self._take_known_names(unmatched, values)
        if values.keys() <= known_names | NOT_METRICS:
            return None
        if not known_names:
            return data, values
        new = {name: value for name, value in values.items() if name not in known_names}
        return orjson.dumps(new).decode(), new

    def withdraw(self, end: int) -> None:
        """Withdraw the stored lines before a byte offset that the new reading has passed over."""
        places = self.earlier.at_places
        for offset in [offset for offset in places if offset < end]:
            self._correct(Correction(places.pop(offset).position))

    def _correct(self, correction: Correction) -> None:
        self.corrections.append(correction)
        self.earlier.is_corrected = True

    def take_end(self) -> bool:
        """Return whether the new reading has passed all stored lines, of which some were corrected: True once."""
        is_end = self.earlier.is_corrected and not self.earlier.at_places
        self.earlier.is_corrected = self.earlier.is_corrected and not is_end
        return is_end

    def _take_equal(self, unmatched: list[_StoredLine], values: Mapping[str, Any]) -> bool:
        """Match one equal line; False if there is none."""
        for line in unmatched:
            if self._stored_values(line) == values:
                unmatched.remove(line)
                return True
        return False

    def _take_known_names(self, unmatched: list[_StoredLine], values: Mapping[str, Any]) -> set[str]:
        """Match every line whose metrics agree, and then lines of the same attempt of which some
        do; the names of the metrics that agree."""
        known_names: set[str] = set()
        for is_changed in (False, True):
            for line in list(unmatched):
                stored = self._stored_values(line)
                shared = (values.keys() & stored.keys()) - NOT_METRICS - known_names
                equal = {name for name in shared if stored[name] == values[name]}
                if equal and (equal == shared or (is_changed and line.attempt == self.attempt)):
                    unmatched.remove(line)
                    known_names |= equal
        return known_names

    def _stored_values(self, line: _StoredLine) -> dict[str, Any]:
        """The values of a stored line; none if its run was removed meanwhile."""
        row = self.connection.execute(
            "SELECT data FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset = ?",
            (self.earlier.source_id, *line.position),
        ).fetchone()
        values: dict[str, Any] = {}
        if row is not None:
            values = orjson.loads(row[0])
        return values
