"""Correct what is stored of an output that is read again.

When the form of its lines is learned, an output is read once more from its start. It is the same file: a line is known
by its place, and what it is taken for now corrects what is stored of it. Stored lines that are no metrics lines any
more are withdrawn.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from gputui.metrics.contract import ParsedLine
from gputui.metrics.earlier_lines import Correction, EarlierLine, EarlierLines, LineComparison, StoredPart
from gputui.store.metrics.stored_lines import FilePosition

if TYPE_CHECKING:
    from gputui.metrics.source_state import SourceState


class EarlierReading(EarlierLines):
    """The lines that were stored of the same file when it was read before.

    Attributes:
        positions: The byte offsets of the lines that the new reading has not reached.
        is_corrected: Some of the lines before were other lines than was thought.
    """

    def __init__(self, source_id: int, connect: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        super().__init__(source_id, connect)
        self.positions: dict[int, FilePosition] = {}
        self.is_corrected = False

    def is_passed(self, state: SourceState, attempt: int) -> bool:
        return self.is_loaded(state, attempt) and not self.positions and not self.is_corrected

    def _load(
        self, connection: sqlite3.Connection, lines: Iterable[EarlierLine], state: SourceState, attempt: int
    ) -> None:
        by_offset = {line.position[1]: line.position for line in lines}
        # Those before were compared by a former agent.
        self.positions = {offset: position for offset, position in by_offset.items() if offset >= state.byte_offset}

    def _compare(self, connection: sqlite3.Connection, attempt: int) -> LineComparison:
        return ReadingComparison(connection, self)


class ReadingComparison(LineComparison):
    """A comparison of the new reading's lines with those of the reading before."""

    def __init__(self, connection: sqlite3.Connection, earlier: EarlierReading) -> None:
        super().__init__(connection, earlier)
        self._reading = earlier

    def take_new_part(self, offset: int, parsed: ParsedLine) -> StoredPart | None:
        position = self._reading.positions.pop(offset, None)
        if position is None:
            return parsed.data, parsed.values
        if self.stored_values(position) != parsed.values:
            self._correct(Correction(position, parsed.step, parsed.data))
        return None

    def pass_to(self, end: int) -> None:
        """Withdraw the stored lines before ``end`` that the new reading has passed over."""
        positions = self._reading.positions
        for offset in [offset for offset in positions if offset < end]:
            self._correct(Correction(positions.pop(offset)))

    def take_end(self) -> bool:
        reading = self._reading
        is_end = reading.is_corrected and not reading.positions
        if is_end:
            reading.is_corrected = False
        return is_end

    def _correct(self, correction: Correction) -> None:
        self.corrections.append(correction)
        self._reading.is_corrected = True
