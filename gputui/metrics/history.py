"""Metrics of the Hugging Face Trainer: ``log_history`` in ``trainer_state.json``, rewritten whole with each checkpoint.

An entry's place is its index, so the rows look like those of a growing file. A history that takes another course than
the one read before (training resumed at an older checkpoint, or began again) continues as the next generation at the
first entry that differs.
"""

from __future__ import annotations

import glob
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, Batch, Boundary, SourceState, owner
from gputui.metrics.contract import ParsedLine, Rejected, parse_values
from gputui.redaction import BY_LOOK, Redactor

MAX_DOCUMENT_BYTES = 64 << 20
_MARK_CHARACTERS = 8


class HistoryReader:
    """Reads the newest of the files that match ``pattern``. The state's fingerprint holds one CRC-32 per entry."""

    def __init__(self, source_id: int, pattern: str, redactor: Redactor = BY_LOOK) -> None:
        self._source_id = source_id
        self._redactor = redactor
        self._pattern = pattern
        self._read: tuple[str, int, int] | None = None
        self._entries: list[Any] = []

    def close(self) -> None:
        """Forget the document; no file stays open."""
        self._read, self._entries = None, []

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. A file that is being written, or damaged, is passed over for the next older one."""
        if not boundaries or not self._look():
            return None
        found = [_mark(entry) for entry in self._entries]
        known = _split(state.fingerprint)
        start = next((i for i, pair in enumerate(zip(found, known, strict=False)) if pair[0] != pair[1]), len(known))
        if start >= len(found):
            return None
        generation = state.generation + (start < len(known))
        attempt, segment_end = owner(boundaries, (generation, start))
        if attempt is None:
            return None
        stop = min(len(found), start + BATCH_LINES, len(found) if segment_end is None else segment_end)
        batch = Batch(state, attempt, self._redactor)
        for index in range(start, stop):
            self._take(batch, generation, index)
        batch.state = SourceState(None, generation, stop, 0, "".join(found[:stop]))
        batch.more = stop < len(found)
        return batch

    def end_place(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_place, counted in entries; with ``at_most``, which is in bytes, always the start."""
        if at_most is not None or not self._look():
            return state
        found = [_mark(entry) for entry in self._entries]
        known = _split(state.fingerprint)
        if found == known[: len(found)]:
            return state
        diverged = found[: len(known)] != known
        return SourceState(None, state.generation + diverged, len(found), 0, "".join(found))

    def _take(self, batch: Batch, generation: int, index: int) -> None:
        entry = self._entries[index]
        parsed = parse_values(entry) if isinstance(entry, Mapping) else Rejected("not a JSON object")
        if isinstance(parsed, ParsedLine):
            batch.bytes_read += len(parsed.data)
            batch.take(self._source_id, generation, index, parsed)
        else:
            batch.reject(generation, index, _text(entry).encode("utf-8", "replace"), parsed)

    def _look(self) -> bool:
        """Bring the entries up to date with the newest readable file; False while there is none."""
        candidates = []
        for path in glob.glob(self._pattern):  # noqa: PTH207 - it is absolute
            try:
                status = Path(path).stat()
            except FileNotFoundError:
                continue
            candidates.append((status.st_mtime_ns, status.st_size, path))
        for modified, size, path in sorted(candidates, reverse=True):
            if self._read == (path, modified, size):
                return True
            entries = _history(path) if size <= MAX_DOCUMENT_BYTES else None
            if entries is not None:
                self._read, self._entries = (path, modified, size), entries
                return True
        return False


def _history(path: str) -> list[Any] | None:
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Written by Python's own json: NaN in it is no damage.
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            return None
    history = document.get("log_history") if isinstance(document, dict) else None
    return history if isinstance(history, list) else None


def _text(entry: object) -> str:
    try:
        return repr(entry)
    except RecursionError:
        return "(nested too deeply)"


def _mark(entry: object) -> str:
    return f"{zlib.crc32(_text(entry).encode('utf-8', 'surrogatepass')):08x}"


def _split(fingerprint: str | None) -> list[str]:
    text = fingerprint or ""
    return [text[i : i + _MARK_CHARACTERS] for i in range(0, len(text), _MARK_CHARACTERS)]
