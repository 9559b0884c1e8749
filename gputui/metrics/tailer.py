"""Follow a growing file of lines, through partial lines, rotation, truncation and rewriting.

The read position is the committed state that each call gets. Only open files are kept, so that a
renamed or deleted one can be read to its end.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, Batch, SourceState
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, Parsed, ParsedLine, Rejected
from gputui.metrics.earlier import EarlierLines
from gputui.metrics.files import (
    Clock,
    FileGate,
    FollowedFile,
    ends,
    ends_after,
    fingerprint,
    is_unchanged,
)
from gputui.metrics.formats import LineFormat
from gputui.store.metrics.queries import FilePosition

HEADER_BYTES = 64 << 10
# A file that stays shorter than what was read for so long has been begun anew by a new attempt,
# not rewritten.
SHORT_SECONDS = 2.0

_ANY_ATTEMPT = 2**63


class Boundary(NamedTuple):
    """The start of an attempt's lines."""

    generation: int
    byte_offset: int
    attempt: int


class SourceReader(Protocol):
    """Reads one source. It is stateless: the given state is the read position, and the returned
    state is valid once it is committed. ``gate`` decides which files may be read, None for all;
    ``is_cut``: the last search for files ended early."""

    gate: FileGate | None

    @property
    def is_cut(self) -> bool: ...

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """The new lines after ``state``, or None. ``ended``: nothing more will be written, so an
        unfinished last line is final. Raises OSError if the file cannot be read."""

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state after everything that exists now, where the next attempt begins. With
        ``at_most``, the state at this offset, or at the start if the file is shorter."""

    def close(self) -> None:
        """Close open files; reading may continue afterwards."""


class LineOwner(NamedTuple):
    """The attempt of a line: its number (None before the first), where its lines begin, and the
    offset in the same generation at which the next attempt's begin, None if there is none."""

    attempt: int | None
    begin: FilePosition
    end: int | None


def owner(boundaries: Sequence[Boundary], position: FilePosition) -> LineOwner:
    """The attempt of the line at a position. ``boundaries`` are sorted."""
    index = bisect_right(boundaries, (*position, _ANY_ATTEMPT))
    following = boundaries[index] if index < len(boundaries) else None
    is_same = following is not None and following.generation == position[0]
    end = following.byte_offset if following is not None and is_same else None
    if not index:
        return LineOwner(None, position, end)
    return LineOwner(boundaries[index - 1].attempt, boundaries[index - 1][:2], end)


class FileReader:
    """What the readers of one `FollowedFile` share: its part of `SourceReader`."""

    def __init__(self, path: str, *, is_pattern: bool = False) -> None:
        self.gate: FileGate | None = None
        self._file = FollowedFile(path, self._admits, is_pattern=is_pattern)

    @property
    def is_cut(self) -> bool:
        """As SourceReader.is_cut."""
        return self._file.matches is not None and self._file.matches.is_cut

    def close(self) -> None:
        """As SourceReader.close."""
        self._file.close()

    def _admits(self, path: str, status: os.stat_result) -> bool:
        return self.gate is None or self.gate.admits(path, status)


class LineReader(FileReader):
    """Reads the lines of the file at ``path``, or of the first file that matches it if
    ``is_pattern``. ``earlier`` knows the lines of a rewritten file's earlier versions.

    A replaced file is first read to its end. If its successor begins with what was read, reading
    continues behind it. Otherwise, and if a file was truncated or rewritten, it is read from its
    start as the next generation. Generations since ``first_generation`` are versions of one file,
    of which only new values are stored; a file that was rotated away stays as it is.
    """

    def __init__(
        self,
        source_id: int,
        path: str,
        line_format: LineFormat,
        redactor: Redactor = BY_LOOK,
        *,
        earlier: EarlierLines,
        is_pattern: bool = False,
        clock: Clock = time.time,
    ) -> None:
        super().__init__(path, is_pattern=is_pattern)
        self._clock = clock
        self._source_id = source_id
        self._redactor = redactor
        self._format = line_format
        self._earlier = earlier
        self._begun: int | None = None
        self._unchanged: tuple[object, ...] | None = None
        self._short_since: float | None = None

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. Reads nothing before the first boundary."""
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
        successor = None if status is None or status.st_ino == inode else status.st_ino
        if status is not None and successor is None:
            descriptor = self._file.open_current(inode)
        else:
            descriptor = self._file.open_former(inode, state.byte_offset, state.fingerprint)
        file_state = None
        if status is not None and successor is None:
            seen = (status.st_size, status.st_mtime_ns)
            file_state = (state, *seen, len(boundaries), ended)
            if file_state == self._unchanged:
                return None
        if descriptor is not None:
            batch = self._read_from(
                descriptor, state, boundaries, min(budget_bytes, BATCH_BYTES), ended and not successor
            )
            if batch is None:
                return self._follow(successor or inode, None, state, boundaries, ended)
            if batch.state != state:
                batch.more = batch.more or successor is not None
                return batch
        if successor is not None:
            return self._follow(successor, descriptor, state, boundaries, ended)
        self._unchanged = file_state
        return None

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state."""
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
        mark = fingerprint(*ends(descriptor, offset))
        return SourceState(status.st_ino, generation, offset, False, mark, generation)

    def _read_from(
        self,
        descriptor: int,
        state: SourceState,
        boundaries: Sequence[Boundary],
        limit: int,
        is_last: bool,
    ) -> Batch | None:
        """The next lines of a file, or a batch with the same state if there are none; None if the
        bytes before them have changed. ``is_last``: a line without a newline is complete."""
        attempt, began, segment_end = owner(boundaries, state.position)
        if attempt is None:
            return Batch(state, 0, self._redactor)
        offset = state.byte_offset
        data, at_end = _segment(descriptor, offset, limit, segment_end)
        if not at_end and not state.skipping and b"\n" not in data:
            data, at_end = _segment(descriptor, offset, MAX_LINE_BYTES + 1, segment_end)
        # Check after the read, so that data of a rewritten file is never taken for a continuation.
        head, tail = ends(descriptor, offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return None
        if self._format.has_header and self._begun != state.generation:
            header = _first_line(descriptor)
            if header is None and not is_last:
                return Batch(state, attempt, self._redactor)
            own_header = None
            if began[0] == state.generation and began[1] < offset:
                own_header = _first_line(descriptor, began[1])
            self._format.begin(header or b"", own_header or b"")
            self._begun = state.generation

        at_boundary = segment_end is not None and offset + len(data) >= segment_end
        # Lines may have been unread for hours, so they are at most as new as the file.
        arrived_at = min(self._clock(), os.fstat(descriptor).st_mtime)
        # An attempt that began in this version of the file writes no copies of earlier lines.
        is_compared = began[0] < state.generation and state.first_generation < state.generation
        with self._earlier.comparison(state, attempt) if is_compared else nullcontext() as earlier:
            batch = Batch(state, attempt, self._redactor, arrived_at, earlier)
            consumed, skipping, complete = self._take(batch, data, at_end and (at_boundary or is_last))
        if earlier is not None and earlier.replaced:
            batch.replaced = earlier.replaced
            text = f"{self._file.path} was rewritten with other values; the newest ones count"
            batch.note("metrics_rewritten", self._file.path, text)
        batch.bytes_read = consumed
        batch.learned = self._format.learned
        batch.more = not complete or not at_end or at_boundary
        if consumed:
            batch.state = replace(
                state,
                byte_offset=offset + consumed,
                skipping=skipping,
                fingerprint=fingerprint(*ends_after(head, tail, data[:consumed])),
            )
        return batch

    # --- replaced and rewritten files -------------------------------------------------------------

    def _follow(
        self,
        inode: int,
        former: int | None,
        state: SourceState,
        boundaries: Sequence[Boundary],
        ended: bool,
    ) -> Batch | None:
        """Continue with the file of this inode, a new one or one with other content. ``former`` is
        the replaced file, if it is still open."""
        assert state.inode is not None
        if former is not None:
            inode = self._file.open_next(state.inode, inode)
        descriptor = self._file.open_current(inode)
        if descriptor is None:
            return None  # It has just been replaced.
        size, offset = os.fstat(descriptor).st_size, state.byte_offset
        batch = Batch(state, 0, self._redactor, more=True)
        begin = boundaries[-1][:2]
        # Whether the newest attempt has no line yet, in the file that its start has seen.
        is_start = len(boundaries) > 1 and state.position <= begin and begin[0] == state.generation
        is_new = inode != state.inode
        is_other = self._format.breaks_at_return or (is_start and is_new and self._file.matches is not None)
        is_copy = is_new and not is_other and 0 < offset <= size
        if is_copy and is_unchanged(descriptor, offset, state.fingerprint):
            # The next attempt may have begun in this file, which was not known yet.
            is_next = boundaries[-1].generation > state.generation
            batch.state = replace(state, inode=inode, generation=state.generation + is_next)
            return batch
        if former is not None and (rest := self._rest(former, state, boundaries)) is not None:
            return rest
        is_other = is_other or (former is not None and os.fstat(former).st_nlink > 0)
        if size < offset and is_start and not is_other:
            # The attempt writes the file again, or begins a new one: the lines of that are its own,
            # even if another attempt has written the same.
            if not self._is_begun_anew(ended):
                return None
            is_other = True
        is_first = state.generation == state.first_generation
        if former is None and is_new and self.gate is None and is_first:
            text = "was replaced while no agent was reading it; its unread lines are lost"
            batch.note("metrics_lost", self._file.path, f"{self._file.path} {text}")
        generation = state.generation + 1
        self._short_since = None
        batch.state = SourceState(
            inode, generation, first_generation=generation if is_other else state.first_generation
        )
        return batch

    def _is_begun_anew(self, ended: bool) -> bool:
        """Whether the file has been short for so long that a new attempt must have begun it."""
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        return ended or now - self._short_since >= SHORT_SECONDS

    def _rest(self, former: int, state: SourceState, boundaries: Sequence[Boundary]) -> Batch | None:
        """The incomplete line at the end of a file that is no longer written; None if there is
        none."""
        batch = self._read_from(former, state, boundaries, BATCH_BYTES, True)
        if batch is None or batch.state == state:
            return None
        batch.more = True
        return batch

    def _take(self, batch: Batch, data: bytes, closing: bool) -> tuple[int, bool, bool]:
        """Add the lines of ``data`` to the batch. Returns the consumed bytes, whether they end in
        an over-long line, and whether every complete line was added."""
        generation, offset = batch.state.position
        if self._format.breaks_at_return:
            data = data.replace(b"\r", b"\n")
        start = 0
        if batch.state.skipping:
            start = data.find(b"\n") + 1
            if not start:
                return len(data), not closing, True
        lines = data[start:].split(b"\n", BATCH_LINES)
        rest = lines.pop()
        complete = len(lines) < BATCH_LINES
        position = offset + start
        parse = self._format.parse
        source_id = self._source_id
        for line in lines:
            parsed = parse(line)
            if type(parsed) is ParsedLine:
                batch.take(source_id, generation, position, parsed)
            elif isinstance(parsed, Rejected):
                batch.reject(generation, position, line, parsed)
            position += len(line) + 1
        is_long = len(rest) > MAX_LINE_BYTES
        if not (complete and rest and (closing or is_long)):
            return position - offset, False, complete
        answer: Parsed = TOO_LONG if is_long else self._format.parse_unterminated(rest)
        if isinstance(answer, Rejected):
            batch.reject(generation, position, rest, answer)
        elif answer is not None:
            batch.take(source_id, generation, position, answer)
        return position + len(rest) - offset, not closing, complete


def _segment(descriptor: int, offset: int, limit: int, segment_end: int | None) -> tuple[bytes, bool]:
    """The next bytes that belong to one attempt, and whether they reach its end or the end of the
    file."""
    wanted = limit if segment_end is None else min(limit, segment_end - offset)
    data = os.pread(descriptor, wanted, offset)
    is_last = segment_end is not None and offset + len(data) == segment_end
    return data, len(data) < wanted or is_last


def _first_line(descriptor: int, offset: int = 0) -> bytes | None:
    """The first line of a file, or from an offset on; None if it is not complete yet."""
    line, newline, _ = os.pread(descriptor, HEADER_BYTES, offset).partition(b"\n")
    return line if newline else None
