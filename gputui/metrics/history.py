"""Read the history of the Hugging Face Trainer, ``trainer_state.json``."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.core.files import read_regular
from gputui.metrics.batch import BATCH_LINES, READ_SECONDS, Batch
from gputui.metrics.contract import Parsed, Rejected, parse_values
from gputui.metrics.files import Matches
from gputui.metrics.reader import ReadSource, comparison_with_earlier
from gputui.metrics.source_state import Boundary, SourceState, owner

MAX_HISTORY_BYTES = 256 << 20  # it is read whole, and takes several times its size in memory


class HistoryReader:
    """Reads ``log_history`` of the newest file that matches ``pattern``: ``trainer_state.json``,
    which each checkpoint writes whole. Call it in a thread of its own.

    The place of an entry is its index. If the first or last entry that was read has changed, the
    history is read from its start as the next generation.
    """

    def __init__(self, source: ReadSource, pattern: str) -> None:
        self._source = source
        self._matches = Matches(pattern)
        self._file: tuple[object, ...] | None = None
        # A file that was read to its end, and the state there.
        self._settled: tuple[object, SourceState] | None = None
        self._modified_at = 0.0
        self._entries: list[Any] = []

    def close(self) -> None:
        self._file = None
        self._entries = []

    def read(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool = False) -> Batch | None:
        """As FileReader.read."""
        if not boundaries or not self._has_history(state, at_once=ended):
            return None
        start = state.byte_offset
        count = len(self._entries)
        if not self._begins_as(state):
            again = SourceState(generation=state.generation + 1, first_generation=state.first_generation)
            return Batch(self._source.lines, again, more=True)
        attempt, began, segment_end = owner(boundaries, state.position)
        if start >= count or attempt is None:
            self._settled = self._file, state
            self.close()
            return None
        stop = min(count, start + BATCH_LINES)
        if segment_end is not None:
            stop = min(stop, segment_end)
        deadline = time.monotonic() + READ_SECONDS
        with comparison_with_earlier(self._source.earlier, began, state, attempt) as comparison:
            batch = self._source.batch(state, attempt, self._modified_at, comparison)
            for index in range(start, stop):
                entry = self._entries[index]
                parsed: Parsed = Rejected("not a JSON object")
                if isinstance(entry, Mapping):
                    parsed = parse_values(entry)
                text = ""
                if isinstance(parsed, Rejected):
                    text = repr(entry)[:1000]
                batch.add(index, text.encode("utf-8", "replace"), parsed)
                if time.monotonic() >= deadline:
                    stop = index + 1
                    break
        batch.state = replace(state, byte_offset=stop, fingerprint=self._mark(stop))
        batch.more = True
        return batch

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As FileReader.end_state, in entries. With ``at_most``, which is in bytes, the start."""
        if at_most is not None or not self._has_history(None, at_once=True):
            return state
        generation = state.generation + (not self._begins_as(state))
        count = len(self._entries)
        return SourceState(
            inode=None,
            generation=generation,
            byte_offset=count,
            skipping=False,
            fingerprint=self._mark(count),
            first_generation=generation,
        )

    def _begins_as(self, state: SourceState) -> bool:
        count = state.byte_offset
        return count <= len(self._entries) and state.fingerprint in (None, self._mark(count))

    def _mark(self, count: int) -> str:
        """The fingerprint of the first ``count`` entries."""
        ends = repr((count, self._entries[:count][:1], self._entries[:count][-1:]))
        return hashlib.blake2b(ends.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def _has_history(self, state: SourceState | None, *, at_once: bool) -> bool:
        """Parse the newest file if it has changed since it was read to ``state``; one that is
        incomplete or no history is passed over."""
        for path, _ in self._matches.newest(at_once=at_once):
            try:
                # A search may be seconds old.
                status = Path(path).stat()
                file = (path, status.st_ino, status.st_size, status.st_mtime_ns)
                if self._settled == (file, state):
                    return False
                if file == self._file:
                    return True
                # A call of Python code lets other threads run; without one, parsing holds them up.
                document = json.loads(read_regular(Path(path), MAX_HISTORY_BYTES), object_hook=lambda entry: entry)
                history = document["log_history"]
            except (OSError, ValueError, RecursionError, TypeError, LookupError):
                continue
            if isinstance(history, list):
                self._file = file
                self._modified_at = status.st_mtime
                self._entries = history
                return True
        return False
