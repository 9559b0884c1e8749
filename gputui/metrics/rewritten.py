"""Store of a rewritten file only what its earlier versions did not have.

A script may write its metrics file again as a whole: with another column, with its last lines
alone, or with some lines changed. Each version is a generation of the source, read from its start.
`VersionComparison` subtracts the stored lines of the earlier versions from the lines of the new one:

    stored of earlier versions    line of the new version                  stored of it
    {"step": 1, "loss": 0.5}      {"step": 1, "loss": 0.5}                 nothing
    {"step": 2, "loss": 0.4}      {"step": 2, "loss": 0.4, "val": 0.6}     {"step": 2, "val": 0.6}
    {"step": 3, "loss": 0.3}      {"step": 3, "loss": 0.2}                 the whole line
    {"step": 4, "a": 1, "b": 2}   {"step": 4, "a": 1, "b": 3}              {"step": 4, "b": 3}
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gputui.metrics.contract import ParsedLine
from gputui.metrics.earlier_lines import EarlierLine, EarlierLines, LineComparison, StoredPart
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
            return cls(rank, step=None, epoch=None, text=data)
        epoch = values.get("epoch")
        if not isinstance(epoch, int | float | str):
            epoch = None
        return cls(rank, step, epoch, text=None)


class _UnmatchedLine(NamedTuple):
    """A stored line that no line of the newest version has matched yet."""

    position: FilePosition
    attempt: int


class EarlierVersions(EarlierLines):
    """The stored lines of the earlier versions of a file.

    Attributes:
        unmatched: The stored lines that no line of the newest version has matched yet, by key.
        resumed_step: Steps after it are new in any case; None to compare all.
    """

    def __init__(self, source_id: int, connect: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        super().__init__(source_id, connect)
        self.unmatched: dict[_LineKey, list[_UnmatchedLine]] = {}
        self.resumed_step: int | None = None

    def _load(
        self, connection: sqlite3.Connection, lines: Iterable[EarlierLine], state: SourceState, attempt: int
    ) -> None:
        self.unmatched = {}
        has_own = False
        for line in lines:
            key = _LineKey.of(line.rank, line.step, line.data, orjson.loads(line.data))
            self.unmatched.setdefault(key, []).append(_UnmatchedLine(line.position, line.attempt))
            has_own = has_own or line.attempt == attempt
        # Nothing is stored of this attempt: all after its checkpoint is new, also if it is as before.
        self.resumed_step = None
        if not has_own:
            _, self.resumed_step = self.checkpoint_of(connection, attempt)

    def _compare(self, connection: sqlite3.Connection, attempt: int) -> LineComparison:
        return VersionComparison(connection, self, attempt)


class VersionComparison(LineComparison):
    """A comparison of a version's lines with those of earlier versions.

    - A stored line matches if its `_LineKey` is the same and all metrics that both have are
      equal. The line is stored without these metrics, but with its step, time and rank.
    - Of the same attempt, a stored line with other values matches too: the line is a changed
      one, and only what changed is stored.
    - A line with an event, or without a step, matches only as a whole.
    - A stored line matches once: a line that the file has twice is stored twice.
    """

    def __init__(self, connection: sqlite3.Connection, earlier: EarlierVersions, attempt: int) -> None:
        super().__init__(connection, earlier)
        self._unmatched = earlier.unmatched
        self._resumed_step = earlier.resumed_step
        self._attempt = attempt

    def take_new_part(self, offset: int, parsed: ParsedLine) -> StoredPart | None:
        step = parsed.step
        values = parsed.values
        if step is not None and self._resumed_step is not None and step > self._resumed_step:
            return parsed.data, values
        candidates = self._unmatched.get(_LineKey.of(parsed.rank, step, parsed.data, values), [])
        if step is None or "event" in values:
            if self._match_whole(candidates, values):
                return None
            return parsed.data, values
        known_names = self._match_names(candidates, values)
        if values.keys() <= known_names | NOT_METRICS:
            return None
        if not known_names:
            return parsed.data, values
        new_values = {name: value for name, value in values.items() if name not in known_names}
        return orjson.dumps(new_values).decode(), new_values

    def _match_whole(self, candidates: list[_UnmatchedLine], values: Mapping[str, Any]) -> bool:
        """Match one equal line; False if there is none."""
        for line in candidates:
            if self.stored_values(line.position) == values:
                candidates.remove(line)
                return True
        return False

    def _match_names(self, candidates: list[_UnmatchedLine], values: Mapping[str, Any]) -> set[str]:
        """Match every line whose metrics agree, and then lines of the same attempt of which some
        do; the names of the metrics that agree."""
        known_names: set[str] = set()
        for may_differ in (False, True):
            for line in list(candidates):
                stored = self.stored_values(line.position)
                shared = (values.keys() & stored.keys()) - NOT_METRICS - known_names
                equal = {name for name in shared if stored[name] == values[name]}
                is_match = equal == shared or (may_differ and line.attempt == self._attempt)
                if equal and is_match:
                    candidates.remove(line)
                    known_names |= equal
        return known_names
