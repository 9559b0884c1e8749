"""Metrics of the Hugging Face Trainer: ``log_history`` in ``trainer_state.json``, which each
checkpoint writes whole.

The place of an entry is its index, so the rows look like those of a growing file. If the entries
that were read have changed (training resumed at an older checkpoint, or began again), the history
is read from its start as the next generation.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.core.config import read_regular
from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch, SourceState
from gputui.metrics.contract import ParsedLine, Rejected, parse_values
from gputui.metrics.earlier import EarlierLines
from gputui.metrics.files import Clock, FileGate, Matches
from gputui.metrics.tailer import Boundary, owner

MOST_BYTES = 256 << 20


@dataclass(slots=True)
class _History:
    """One version of a file, written at ``modified_at`` (UTC unix seconds). ``read`` digests the
    entries before ``position``."""

    version: str
    modified_at: float
    entries: list[Any]
    position: int = 0
    read: Any = None

    def advance(self, position: int) -> str:
        """The digest of the entries before ``position``."""
        if self.read is None or position < self.position:
            self.position, self.read = 0, hashlib.blake2b(digest_size=8)
        for entry in self.entries[self.position : position]:
            self.read.update(repr(entry).encode("utf-8", "surrogatepass"))
        self.position = position
        return str(self.read.hexdigest())

    def begins_as(self, state: SourceState) -> bool:
        """Whether it has the entries that were read."""
        count = state.byte_offset
        return count <= len(self.entries) and (state.fingerprint is None or self.advance(count) == state.fingerprint)


class HistoryReader:
    """Reads the newest file that matches ``pattern``. A file that is incomplete or no history is
    passed over. Call it in a thread of its own: a history may have 300 000 entries."""

    def __init__(
        self,
        source_id: int,
        pattern: str,
        redactor: Redactor = BY_LOOK,
        *,
        earlier: EarlierLines,
        clock: Clock = time.time,
    ) -> None:
        self.gate: FileGate | None = None
        self._clock = clock
        self._source_id = source_id
        self._redactor = redactor
        self._matches = Matches(pattern)
        self._earlier = earlier
        self._history: _History | None = None
        # The version of the file that was read to its end, and the state there.
        self._settled: tuple[str, SourceState] | None = None
        self._damaged: set[str] = set()

    @property
    def is_cut(self) -> bool:
        """As SourceReader.is_cut."""
        return self._matches.is_cut

    def close(self) -> None:
        """Forget the file; none stays open."""
        self._history = None

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. The budget is one of lines and time."""
        if not boundaries:
            return None
        history = self._newest(state, at_once=ended)
        if history is None:
            return None
        if not history.begins_as(state):
            batch = Batch(state, 0, self._redactor, more=True)
            batch.state = SourceState(generation=state.generation + 1, first_generation=state.first_generation)
            return batch
        start, count = state.byte_offset, len(history.entries)
        attempt, began, segment_end = owner(boundaries, state.position)
        if start >= count or attempt is None:
            self._settled = (history.version, state)
            self._history = None
            return None
        stop = min(count, start + BATCH_LINES, count if segment_end is None else segment_end)
        until = time.monotonic() + READ_SECONDS
        is_compared = began[0] < state.generation and state.first_generation < state.generation
        with self._earlier.comparison(state, attempt) if is_compared else nullcontext() as earlier:
            arrived_at = min(self._clock(), history.modified_at)
            batch = Batch(state, attempt, self._redactor, arrived_at, earlier)
            for index in range(start, stop):
                self._take(batch, state.generation, index, history.entries[index])
                if time.monotonic() >= until:
                    stop = index + 1
                    break
        if earlier is not None:
            batch.replaced = earlier.replaced
        batch.state = replace(state, byte_offset=stop, fingerprint=history.advance(stop))
        batch.bytes_read = stop - start
        batch.more = True
        return batch

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state, in entries. With ``at_most``, which is in bytes, the start."""
        history = None if at_most is not None else self._newest(state, at_once=True)
        if history is None:
            return state
        generation = state.generation + (not history.begins_as(state))
        count = len(history.entries)
        return SourceState(None, generation, count, False, history.advance(count), generation)

    def _take(self, batch: Batch, generation: int, index: int, entry: Any) -> None:
        is_object = isinstance(entry, Mapping)
        parsed = parse_values(entry) if is_object else Rejected("not a JSON object")
        if isinstance(parsed, ParsedLine):
            batch.take(self._source_id, generation, index, parsed)
        else:
            batch.reject(generation, index, repr(entry)[:1000].encode("utf-8", "replace"), parsed)

    def _newest(self, state: SourceState, *, at_once: bool) -> _History | None:
        """The newest history; None if there is none, or nothing new in it."""
        for path, status in self._matches.newest(at_once=at_once):
            if self.gate is not None and not self.gate.admits(path, status):
                continue
            try:
                # A search may be seconds old.
                status = Path(path).stat()
            except OSError:
                continue
            version = f"{path}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
            if version in self._damaged:
                continue
            if self._settled == (version, state):
                return None
            if self._history is None or self._history.version != version:
                entries = _entries(path)
                if entries is None:
                    self._damaged.add(version)
                    continue
                self._history = _History(version, status.st_mtime, entries)
            return self._history
        return None


def _entries(path: str | os.PathLike[str]) -> list[Any] | None:
    """The entries of a history; None if the file is none, or is not complete."""
    try:
        # A call of Python code lets other threads run; without one, parsing holds them up.
        document = json.loads(read_regular(Path(path), MOST_BYTES), object_hook=lambda entry: entry)
    except (OSError, ValueError, RecursionError):
        return None
    history = document.get("log_history") if isinstance(document, dict) else None
    return history if isinstance(history, list) else None
