"""What is stored of the earlier generations of a source's file, to compare its newest one with.

A file that is read from its start again is a new generation of its source. It is another version of
the file (`gputui.metrics.rewritten`), or another reading of the same one (`gputui.metrics.reread`).
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gputui.metrics.contract import ParsedLine
from gputui.store.metrics.stored_lines import FilePosition

if TYPE_CHECKING:
    from gputui.metrics.source_state import SourceState

StoredPart = tuple[str, Mapping[str, Any]]
"""What is to be stored of a line: as JSON, and decoded."""


class EarlierLine(NamedTuple):
    """A line of an earlier generation."""

    position: FilePosition
    attempt: int
    rank: int | None
    step: int | None
    data: str


class Correction(NamedTuple):
    """What a stored line is taken for now: its new step and text; no text if it is no metrics line."""

    position: FilePosition
    step: int | None = None
    data: str | None = None


class LineComparison(ABC):
    """A comparison of the lines of one batch, one after another, with the stored lines of earlier generations.

    Attributes:
        earlier: What they are compared with.
        corrections: Corrections of stored lines, to be stored with the new ones.
    """

    def __init__(self, connection: sqlite3.Connection, earlier: EarlierLines) -> None:
        self.earlier = earlier
        self.corrections: list[Correction] = []
        self._connection = connection

    @abstractmethod
    def take_new_part(self, offset: int, parsed: ParsedLine) -> StoredPart | None:
        """The part of the line at a byte offset to store; None if all of it is stored already.

        Raises:
            sqlite3.Error: The stored lines cannot be read.
        """

    def pass_to(self, end: int) -> None:  # noqa: B027 - versions need not know
        """Note that the new generation was read up to a byte offset."""

    def take_end(self) -> bool:
        """Return whether all stored lines were compared, of which some were corrected: True once."""
        return False

    def stored_values(self, position: FilePosition) -> dict[str, Any]:
        """The values of a stored line; none if its run was removed meanwhile. Raises sqlite3.Error."""
        row = self._connection.execute(
            "SELECT data FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset = ?",
            (self.earlier.source_id, *position),
        ).fetchone()
        values: dict[str, Any] = {}
        if row is not None:
            values = orjson.loads(row[0])
        return values


class EarlierLines(ABC):
    """The stored lines of a source's earlier generations, loaded once for each generation and attempt.

    Attributes:
        source_id: The source whose lines they are.
    """

    def __init__(self, source_id: int, connect: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        """``connect`` opens the store for the thread that reads."""
        self.source_id = source_id
        self._connect = connect
        # The first generation, the generation and the attempt for which lines were loaded.
        self._loaded_for: tuple[int, int, int] | None = None

    @contextmanager
    def comparison(self, state: SourceState, attempt: int) -> Iterator[LineComparison]:
        """Compare the lines of one batch, those after ``state``; call `forget` if it is not stored.
        Raises sqlite3.Error."""
        with self._connect() as connection:
            if not self.is_loaded(state, attempt):
                rows = connection.execute(
                    "SELECT generation, byte_offset, attempt, rank, step, data FROM metrics "
                    "WHERE source_id = ? AND generation >= ? AND generation < ?",
                    (self.source_id, state.first_generation, state.generation),
                )
                lines = (EarlierLine((generation, offset), *line) for generation, offset, *line in rows)
                self._load(connection, lines, state, attempt)
                self._loaded_for = (state.first_generation, state.generation, attempt)
            yield self._compare(connection, attempt)

    def is_loaded(self, state: SourceState, attempt: int) -> bool:
        """Return whether the lines before this generation and attempt are in memory."""
        return self._loaded_for == (state.first_generation, state.generation, attempt)

    def is_passed(self, state: SourceState, attempt: int) -> bool:
        """Return whether nothing is left to compare."""
        return False

    def forget(self) -> None:
        """Load the lines again for the next comparison."""
        self._loaded_for = None

    def is_resumed(self, attempt: int) -> bool:
        """Return whether an attempt began from a checkpoint, so that its script may write the lines
        before that again. Raises sqlite3.Error."""
        with self._connect() as connection:
            return self.checkpoint_of(connection, attempt)[0] is not None

    def checkpoint_of(self, connection: sqlite3.Connection, attempt: int) -> tuple[str | None, int | None]:
        """The checkpoint that an attempt resumed from, and its step. Raises sqlite3.Error."""
        row: tuple[str | None, int | None] | None = connection.execute(
            "SELECT resumed_from, resumed_step FROM attempts JOIN metric_sources USING (run_id) "
            "WHERE source_id = ? AND number = ?",
            (self.source_id, attempt),
        ).fetchone()
        return row or (None, None)

    @abstractmethod
    def _load(
        self, connection: sqlite3.Connection, lines: Iterable[EarlierLine], state: SourceState, attempt: int
    ) -> None:
        """Keep what is compared of the lines of earlier generations. Raises sqlite3.Error."""

    @abstractmethod
    def _compare(self, connection: sqlite3.Connection, attempt: int) -> LineComparison:
        """Begin the comparison of one batch of an attempt."""
