"""Metrics of the Hugging Face Trainer: ``log_history`` in ``trainer_state.json``, which each checkpoint rewrites.

The place of an entry is its index, so the rows look like those of a growing file. If the history differs from the one
that was read (training resumed at an older checkpoint, or restarted), reading continues as the next generation at the
first different entry.

Each version of a file is scanned once, in pieces. Entries that are known by their bytes are never parsed, and only the
places of entries are kept.
"""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gputui.core.config import open_regular
from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch, SourceState
from gputui.metrics.contract import MAX_LINE_BYTES, ParsedLine, Rejected, parse_values
from gputui.metrics.custody import Custody
from gputui.metrics.files import Matches
from gputui.metrics.history_scan import HistoryScan
from gputui.metrics.marks import KnownMarks, common, packed
from gputui.metrics.source_reader import Boundary, owning_attempt

MAX_DAMAGED = 1000


class HistoryReader:
    """Reads the newest file that matches ``pattern``. ``known`` returns marks of stored entries; ``clock`` gives UTC
    unix seconds. The state's fingerprint names the version of the file that was read to its end."""

    def __init__(
        self,
        source_id: int,
        pattern: str,
        redactor: Redactor = BY_LOOK,
        *,
        known: KnownMarks,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.is_busy = False
        self.custody: Custody | None = None
        self.device: int | None = None
        self._clock = clock
        self._source_id = source_id
        self._redactor = redactor
        self._matches = Matches(pattern)
        self._known = known
        self._scan: HistoryScan | None = None
        self._damaged: set[str] = set()
        self._expected: SourceState | None = None
        self._settled: tuple[str, SourceState] | None = None
        self._candidates: list[str] = []

    @property
    def is_cut(self) -> bool:
        """As SourceReader.is_cut."""
        return self._matches.is_cut

    def close(self) -> None:
        """Forget the file; none stays open."""
        self._scan, self._expected = None, None

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. If a file is incomplete or damaged, the next older one is read."""
        self.is_busy = False
        if not boundaries:
            return None
        scan = self._scanned(state, at_once=ended)
        if scan is None:
            return None
        if not scan.advance():
            self.is_busy = True
            return None
        if scan.is_damaged:
            self._pass_over(scan)
            self.is_busy = True
            return None
        count = len(scan.marks)
        start, total = state.byte_offset, state.byte_offset
        if state != self._expected and state.mark_count is not None:
            total = state.mark_count
            start = common(packed(scan.marks), self._known(0, total))
        if start >= count:
            self._settled = (scan.version, state)
            return None
        generation = state.generation + (start < total)
        attempt, segment_end = owning_attempt(boundaries, (generation, start))
        if attempt is None:
            return None
        batch = Batch(state, attempt, self._redactor, min(self._clock(), scan.modified_at))
        stop = min(count, start + BATCH_LINES, count if segment_end is None else segment_end)
        until = time.monotonic() + READ_SECONDS
        with open_regular(Path(scan.path)) as file:
            for index in range(start, stop):
                self._take(batch, generation, index, file.fileno(), scan)
                if batch.bytes_read >= budget_bytes or time.monotonic() >= until:
                    stop = index + 1
                    break
        # An older gputui stored no marks: assume that its entries have not changed.
        batch.marks = scan.marks[start if state.mark_count is not None else 0 : stop]
        batch.state = SourceState(
            None, generation, stop, 0, scan.version if stop == count else None, stop, state.is_rewritten
        )
        batch.more = stop < count
        self._expected = batch.state
        return batch

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state, in entries. With ``at_most``, which is in bytes, always the start."""
        if at_most is not None:
            return state
        scan = self._scanned(state, at_once=True)
        if scan is None:
            return state
        while not scan.advance():
            pass
        if scan.is_damaged:
            self._pass_over(scan)
            return self.end_state(state)
        total = state.mark_count or 0
        equal = common(packed(scan.marks), self._known(0, total))
        if equal == len(scan.marks):
            return state
        return SourceState(None, state.generation + (equal < total), len(scan.marks), 0, scan.version)

    def _pass_over(self, scan: HistoryScan) -> None:
        if len(self._damaged) >= MAX_DAMAGED:
            self._damaged.clear()
        self._damaged.add(scan.version)
        self._scan = None

    def _take(self, batch: Batch, generation: int, index: int, descriptor: int, scan: HistoryScan) -> None:
        begin, size = scan.starts[index], scan.sizes[index]
        raw = os.pread(descriptor, min(size, MAX_LINE_BYTES + 1), begin)
        entry = _decoded(raw)
        parsed = parse_values(entry) if isinstance(entry, Mapping) else Rejected("not a JSON object")
        batch.bytes_read += size
        if isinstance(parsed, ParsedLine):
            batch.take(self._source_id, generation, index, parsed)
        else:
            batch.reject(generation, index, raw, parsed)

    def _scanned(self, state: SourceState, *, at_once: bool) -> HistoryScan | None:
        """The scan of the newest usable file, perhaps unfinished; None if there is no file or nothing new in it."""
        for path in self._newest_first(at_once=at_once):
            try:
                status = Path(path).stat()
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            if self.custody is not None and not self.custody.admits(path, status):
                continue
            self.device = status.st_dev
            version = f"{zlib.crc32(os.fsencode(path)):08x}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
            if version in self._damaged:
                continue
            if version == state.fingerprint or (version, state) == self._settled:
                self._scan = None
                return None
            if self._scan is None or self._scan.version != version:
                self._scan, self._expected = HistoryScan(path, version, status.st_mtime), None
            return self._scan
        return None

    def _newest_first(self, *, at_once: bool) -> list[str]:
        if at_once or self._matches.is_due():
            found = []
            for path in self._matches.paths(at_once=at_once):
                try:
                    found.append((Path(path).stat().st_mtime_ns, path))
                except OSError:
                    continue
            self._candidates = [path for _, path in sorted(found, reverse=True)]
        return self._candidates


def _decoded(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Python's json writes NaN, which orjson rejects.
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None
