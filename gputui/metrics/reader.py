"""Read growing files of lines or records, through partial lines, rotation, truncation and
rewriting; and the history of the Hugging Face Trainer. The read position is the state that each
call gets."""

from __future__ import annotations

import enum
import hashlib
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputui.core.config import read_regular
from gputui.core.redaction import Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch, EarlierLines, SourceState
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, LineFormat, Parsed, Rejected, parse_values
from gputui.metrics.files import FollowedFile, Matches, ends, ends_after, fingerprint, is_unchanged
from gputui.metrics.trackers import MAX_RECORD_BYTES, DamagedRecordError, RecordFormat
from gputui.store.metrics.queries import FilePosition

HEADER_BYTES = 64 << 10
MAX_HISTORY_BYTES = 256 << 20

_ANY_ATTEMPT = 2**63


class ReadSource(NamedTuple):
    """The source of a reader: its ID, how its texts are redacted, what is stored of the earlier
    versions of its file, and a clock (UTC unix seconds)."""

    source_id: int
    redactor: Redactor
    earlier: EarlierLines
    clock: Callable[[], float]


class Boundary(NamedTuple):
    """The start of an attempt's lines."""

    generation: int
    byte_offset: int
    attempt: int


class LineOwner(NamedTuple):
    """The attempt of a line: its number (None before the first), where its lines begin, and the
    offset in the same generation at which the next attempt's begin, None if there is none."""

    attempt: int | None
    begin: FilePosition
    end: int | None


def owner(boundaries: Sequence[Boundary], position: FilePosition) -> LineOwner:
    """The attempt of the line at a position. ``boundaries`` are sorted."""
    index = bisect_right(boundaries, (*position, _ANY_ATTEMPT))
    end = None
    if index < len(boundaries) and boundaries[index].generation == position[0]:
        end = boundaries[index].byte_offset
    if not index:
        return LineOwner(None, position, end)
    return LineOwner(boundaries[index - 1].attempt, boundaries[index - 1][:2], end)


class Succession(enum.Enum):
    """What the file at the path is to the one that was read: it begins with what was read of that;
    it is the same file written again, of which only new values count; or it is another one."""

    COPY = enum.auto()
    VERSION = enum.auto()
    OTHER = enum.auto()


class FileReader:
    """Reads the file at ``path``, or the newest that matches it if ``is_pattern``.

    A replaced file is first read to its end. Then its successor is read, from its start as the next
    generation unless it is a copy. Generations since ``first_generation`` are versions of one file.
    """

    def __init__(self, source: ReadSource, path: str, file_format: LineFormat, *, is_pattern: bool) -> None:
        self._source = source
        self._file = FollowedFile(path, is_pattern=is_pattern)
        self._format = file_format
        # The generation whose header the format knows.
        self._begun: int | None = None
        self._unchanged: tuple[object, ...] | None = None

    def close(self) -> None:
        """Close open files; reading may continue afterwards."""
        self._file.close()

    def read(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool = False) -> Batch | None:
        """The new lines after ``state``, or None, also before the first boundary; valid once they
        are committed with the batch's state. ``ended``: an unfinished last line is final. Raises
        OSError."""
        if not boundaries:
            return None
        # Check the path before reading the old file to its end: a writer that has opened a new file
        # there writes no more to the old one.
        status = self._file.status(at_once=ended)
        if state.inode is None:
            if status is None:
                return None
            state = replace(state, inode=status.st_ino)
        inode = state.inode
        assert inode is not None
        if state.skipping and any(boundary[:2] == state.position for boundary in boundaries):
            # An over-long line ends where the next attempt begins.
            state = replace(state, skipping=False)
        self._file.keep_only(inode)
        successor = seen = None
        if status is not None and status.st_ino == inode:
            seen = (state, status.st_size, status.st_mtime_ns, len(boundaries), ended)
            if seen == self._unchanged:
                return None
            descriptor = self._file.open_current(inode)
        else:
            descriptor = self._file.open_former(inode, state.byte_offset, state.fingerprint)
            successor = None if status is None else status.st_ino
        if descriptor is not None:
            is_followed = successor is not None and status is not None and status.st_size > 0
            batch = self._read_from(descriptor, state, boundaries, is_last=ended and not is_followed)
            if batch is None:
                return self._follow(successor or inode, None, state, boundaries)
            if batch.state != state:
                batch.more = batch.more or successor is not None
                return batch
        if successor is not None:
            return self._follow(successor, descriptor, state, boundaries)
        self._unchanged = seen
        return None

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state after everything that exists now, where the next attempt begins. With
        ``at_most``, the state at this offset, or at the start if the file is shorter."""
        status = self._file.status(at_once=True)
        following = state.generation + (state.inode is not None)
        descriptor = None if status is None else self._file.open_current(status.st_ino)
        if status is None or descriptor is None:
            return SourceState(None, following, first_generation=following)
        offset = os.fstat(descriptor).st_size
        if at_most is not None:
            offset = at_most if at_most <= offset else 0
        is_read_one = state.inode == status.st_ino and is_unchanged(descriptor, state.byte_offset, state.fingerprint)
        generation = state.generation if is_read_one else following
        return SourceState(status.st_ino, generation, offset, False, fingerprint(*ends(descriptor, offset)), generation)

    def _read_from(
        self, descriptor: int, state: SourceState, boundaries: Sequence[Boundary], *, is_last: bool
    ) -> Batch | None:
        """The next lines of a file, or a batch with the same state if there are none; None if the
        bytes before them have changed. ``is_last``: a line without a newline is complete."""
        attempt, began, segment_end = owner(boundaries, state.position)
        if attempt is None:
            return Batch(state)
        offset = state.byte_offset
        data, at_end = _segment(descriptor, offset, BATCH_BYTES, segment_end)
        if not at_end and not state.skipping and not self._has_whole(data, offset):
            longest = 2 * MAX_RECORD_BYTES if isinstance(self._format, RecordFormat) else MAX_LINE_BYTES + 1
            data, at_end = _segment(descriptor, offset, longest, segment_end)
        # Check after the read, so that data of a rewritten file is never taken for a continuation.
        head, tail = ends(descriptor, offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return None
        if self._format.has_header and self._begun != state.generation:
            header = _first_line(descriptor)
            if header is None and not is_last:
                return Batch(state)
            is_appended = began[0] == state.generation and began[1] < offset
            own_header = _first_line(descriptor, began[1]) if is_appended else None
            self._format.begin(header or b"", own_header or b"")
            self._begun = state.generation

        at_boundary = segment_end is not None and offset + len(data) >= segment_end
        is_closed = at_end and (at_boundary or is_last)
        # Lines may have been unread for hours, so they are at most as new as the file.
        arrived_at = min(self._source.clock(), os.fstat(descriptor).st_mtime)
        with _comparison(self._source.earlier, began, state, attempt) as earlier:
            batch = Batch(state, attempt, self._source.redactor, arrived_at, earlier)
            if isinstance(self._format, RecordFormat):
                consumed, skipping, complete = self._add_records(self._format, batch, data, is_closed)
            else:
                consumed, skipping, complete = self._add_lines(self._format, batch, data, is_closed)
        batch.learned = self._format.learned
        batch.more = not complete or not at_end or at_boundary
        if consumed or skipping != state.skipping:
            mark = fingerprint(*ends_after(head, tail, data[:consumed]))
            batch.state = replace(state, byte_offset=offset + consumed, skipping=skipping, fingerprint=mark)
        return batch

    def _follow(
        self, inode: int, former: int | None, state: SourceState, boundaries: Sequence[Boundary]
    ) -> Batch | None:
        """Continue with the file of this inode, a new one or one with other content. ``former`` is
        the replaced file, if it is still open."""
        if former is not None and state.inode is not None:
            inode = self._file.open_next(state.inode, inode)
        descriptor = self._file.open_current(inode)
        if descriptor is None or not os.fstat(descriptor).st_size:
            return None  # It has just been replaced or truncated.
        succession = self._succession(descriptor, former, state, boundaries)
        batch = Batch(state, more=True)
        if succession is Succession.COPY:
            # The next attempt may have begun in this file, which was not known yet.
            is_next = boundaries[-1].generation > state.generation
            batch.state = replace(state, inode=inode, generation=state.generation + is_next)
            return batch
        if former is not None:
            # The incomplete line at the end of a file that is no longer written.
            rest = self._read_from(former, state, boundaries, is_last=True)
            if rest is not None and rest.state != state:
                rest.more = True
                return rest
        generation = state.generation + 1
        first = generation if succession is Succession.OTHER else state.first_generation
        batch.state = SourceState(inode, generation, first_generation=first)
        return batch

    def _succession(
        self, descriptor: int, former: int | None, state: SourceState, boundaries: Sequence[Boundary]
    ) -> Succession:
        status = os.fstat(descriptor)
        is_new = status.st_ino != state.inode
        begin = boundaries[-1]
        # The newest attempt has no line yet, in the file that its start has seen: a newer file is its
        # own, and a shorter one too if it began from the start, even if another attempt has written
        # the same lines.
        is_start = len(boundaries) > 1 and begin.generation == state.generation and state.position <= begin[:2]
        if self._format.breaks_at_return or (is_start and is_new and self._file.matches is not None):
            return Succession.OTHER
        is_longer = 0 < state.byte_offset <= status.st_size
        if is_new and is_longer and is_unchanged(descriptor, state.byte_offset, state.fingerprint):
            return Succession.COPY
        is_rotated = former is not None and os.fstat(former).st_nlink > 0
        is_begun_anew = (
            is_start and status.st_size < state.byte_offset and not self._source.earlier.is_resumed(begin[2])
        )
        return Succession.OTHER if is_rotated or is_begun_anew else Succession.VERSION

    def _has_whole(self, data: bytes, offset: int) -> bool:
        if isinstance(self._format, RecordFormat):
            try:
                return any(True for _ in self._format.frames(data, offset))
            except DamagedRecordError:
                return True
        return b"\n" in data

    def _add_lines(self, line_format: LineFormat, batch: Batch, data: bytes, is_closed: bool) -> tuple[int, bool, bool]:
        """Add the lines of ``data`` to the batch. Returns the consumed bytes, whether they end in
        an over-long line, and whether every complete line was added."""
        offset = batch.state.byte_offset
        if line_format.breaks_at_return:
            data = data.replace(b"\r", b"\n")
        start = 0
        if batch.state.skipping:
            start = data.find(b"\n") + 1
            if not start:
                return len(data), not is_closed, True
        lines = data[start:].split(b"\n", BATCH_LINES)
        rest = lines.pop()
        complete = len(lines) < BATCH_LINES
        position = offset + start
        for line in lines:
            batch.add(self._source.source_id, position, line, line_format.parse(line))
            position += len(line) + 1
        is_long = len(rest) > MAX_LINE_BYTES
        if not (complete and rest and (is_closed or is_long)):
            return position - offset, False, complete
        answer: Parsed = TOO_LONG if is_long else line_format.parse_unterminated(rest)
        batch.add(self._source.source_id, position, rest, answer)
        return position + len(rest) - offset, not is_closed, complete

    def _add_records(
        self, record_format: RecordFormat, batch: Batch, data: bytes, is_closed: bool
    ) -> tuple[int, bool, bool]:
        """The same for records; half a record of a killed script is passed over."""
        offset, consumed = batch.state.byte_offset, 0
        until = time.monotonic() + READ_SECONDS
        try:
            for number, (end, content) in enumerate(record_format.frames(data, offset)):
                if number >= BATCH_LINES or (number and time.monotonic() >= until):
                    return consumed, False, False
                try:
                    values = record_format.scalars(content)
                    parsed = None if values is None else parse_values(values)
                except DamagedRecordError as error:
                    # The frame is intact, so the next record can be read.
                    parsed = Rejected(str(error))
                batch.add(self._source.source_id, offset + consumed, content[:200], parsed)
                consumed = end
        except DamagedRecordError as error:
            # The start of the next record is unknown, but data that is appended later may begin
            # with one.
            batch.add(self._source.source_id, offset + consumed, b"", Rejected(str(error)))
            consumed = len(data)
        return len(data) if is_closed else consumed, False, True


def _comparison(
    earlier: EarlierLines, began: FilePosition, state: SourceState, attempt: int
) -> AbstractContextManager[EarlierLines | None]:
    """The comparison with earlier versions of a file. An attempt that began in this version writes
    no copies of earlier lines."""
    is_compared = began[0] < state.generation and state.first_generation < state.generation
    return earlier.comparison(state, attempt) if is_compared else nullcontext()


def _segment(descriptor: int, offset: int, limit: int, segment_end: int | None) -> tuple[bytes, bool]:
    """The next bytes that belong to one attempt, and whether they reach its end or the end of the
    file."""
    wanted = limit if segment_end is None else min(limit, segment_end - offset)
    data = os.pread(descriptor, wanted, offset)
    return data, len(data) < wanted or (segment_end is not None and offset + len(data) == segment_end)


def _first_line(descriptor: int, offset: int = 0) -> bytes | None:
    """The first line of a file, or from an offset on; None if it is not complete yet."""
    line, newline, _ = os.pread(descriptor, HEADER_BYTES, offset).partition(b"\n")
    return line if newline else None


# --- histories ------------------------------------------------------------------------------------


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
        self._file, self._entries = None, []

    def read(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool = False) -> Batch | None:
        """As FileReader.read."""
        if not boundaries or not self._has_history(state, at_once=ended):
            return None
        start, count = state.byte_offset, len(self._entries)
        if not self._begins_as(state):
            batch = Batch(state, more=True)
            batch.state = SourceState(generation=state.generation + 1, first_generation=state.first_generation)
            return batch
        attempt, began, segment_end = owner(boundaries, state.position)
        if start >= count or attempt is None:
            self._settled = self._file, state
            self.close()
            return None
        stop = min(count, start + BATCH_LINES, count if segment_end is None else segment_end)
        until = time.monotonic() + READ_SECONDS
        with _comparison(self._source.earlier, began, state, attempt) as earlier:
            batch = Batch(state, attempt, self._source.redactor, min(self._source.clock(), self._modified_at), earlier)
            for index in range(start, stop):
                entry = self._entries[index]
                parsed = parse_values(entry) if isinstance(entry, Mapping) else Rejected("not a JSON object")
                shown = repr(entry)[:1000] if isinstance(parsed, Rejected) else ""
                batch.add(self._source.source_id, index, shown.encode("utf-8", "replace"), parsed)
                if time.monotonic() >= until:
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
        return SourceState(None, generation, count, False, self._mark(count), generation)

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
                self._file, self._modified_at, self._entries = file, status.st_mtime, history
                return True
        return False


SourceReader = FileReader | HistoryReader
