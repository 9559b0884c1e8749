"""Following one growing file of lines: partial lines, rotation, truncation and restarts included.

Nothing that matters is remembered here: where reading stands is the committed state that each call is given. Only open
files are kept, so that one that was renamed or deleted can still be read to its end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, Batch, Boundary, SourceState, owner
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, Parsed, ParsedLine, Rejected
from gputui.metrics.files import FollowedFile, fingerprint, is_unchanged, marks, marks_after
from gputui.metrics.formats import LineFormat
from gputui.redaction import BY_LOOK, Redactor

HEADER_BYTES = 64 << 10


class SourceTailer:
    """Reads the lines of the file at ``path``, or of the first that matches it where ``is_pattern``.

    A file that is replaced is read to its end first, then the new one from its start as the next generation; one that
    was truncated or rewritten is read from its start as the next generation.
    """

    def __init__(
        self,
        source_id: int,
        path: str,
        line_format: LineFormat,
        redactor: Redactor = BY_LOOK,
        *,
        is_pattern: bool = False,
    ) -> None:
        self._source_id = source_id
        self._redactor = redactor
        self._format = line_format
        self._file = FollowedFile(path, is_pattern=is_pattern)
        self._begun: tuple[int, int] | None = None
        self._unchanged: tuple[object, ...] | None = None

    def close(self) -> None:
        """Let go of open files; reading may go on afterwards."""
        self._file.close()

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. Without a boundary nothing is read: no attempt has begun."""
        if not boundaries:
            return None
        # The path is looked at before the old file is read to its end: whoever has opened a new file there has
        # written its last line to the old one.
        status = self._file.status()
        if state.inode is None:
            if status is None:
                return None
            state = SourceState(status.st_ino, state.generation)
        inode = state.inode
        assert inode is not None
        if state.skipping and any(boundary[:2] == state.place for boundary in boundaries):
            # An over-long line ends where the next attempt begins, with or without a newline.
            state = replace(state, skipping=0)
        self._file.keep_only(inode)
        if status is not None and status.st_ino == inode:
            seen = (state, status.st_size, status.st_mtime_ns, len(boundaries), ended)
            if seen == self._unchanged:
                return None
            successor = None
            descriptor = self._file.open_current(inode)
        else:
            seen = None
            successor = None if status is None else status.st_ino
            descriptor = self._file.open_former(inode, state.byte_offset, state.fingerprint)
        if descriptor is None:
            gone = "was replaced while nobody was reading; what was unread in it is gone"
            return None if successor is None else self._turn(Batch(state, 0, self._redactor), successor, gone)
        batch = self._read_from(descriptor, state, boundaries, min(budget_bytes, BATCH_BYTES), ended, successor)
        if batch is None or batch.state == state:
            self._unchanged = seen
            return None
        return batch

    def end_place(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_place."""
        status = self._file.status()
        following = state.generation + (state.inode is not None)
        descriptor = None if status is None else self._file.open_current(status.st_ino)
        if status is None or descriptor is None:
            return SourceState(None, following)
        is_read_one = state.inode == status.st_ino and is_unchanged(descriptor, state.byte_offset, state.fingerprint)
        offset = os.fstat(descriptor).st_size
        if at_most is not None:
            offset = at_most if at_most <= offset else 0
        generation = state.generation if is_read_one else following
        return SourceState(status.st_ino, generation, offset, 0, fingerprint(*marks(descriptor, offset)))

    def _read_from(
        self,
        descriptor: int,
        state: SourceState,
        boundaries: Sequence[Boundary],
        limit: int,
        ended: bool,
        successor: int | None,
    ) -> Batch | None:
        assert state.inode is not None
        attempt, segment_end = owner(boundaries, state.place)
        if attempt is None:
            return None
        offset = state.byte_offset
        data, at_end = self._segment(descriptor, offset, limit, segment_end)
        if not at_end and not state.skipping and b"\n" not in data:
            data, at_end = self._segment(descriptor, offset, MAX_LINE_BYTES + 1, segment_end)
        # Looked at after the reading: nothing of a rewritten file may pass for the continuation of the old one.
        head, tail = marks(descriptor, offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return self._turn(
                Batch(state, attempt, self._redactor), state.inode, "was rewritten; it is read again from its start"
            )
        if self._format.has_header and self._begun != (state.inode, state.generation):
            self._format.begin(os.pread(descriptor, HEADER_BYTES, 0).split(b"\n", 1)[0])
            self._begun = (state.inode, state.generation)

        at_boundary = segment_end is not None and offset + len(data) >= segment_end
        closing = at_end and (at_boundary or ended or successor is not None)
        batch = Batch(state, attempt, self._redactor)
        consumed, skipping, complete = self._take(batch, data, closing)
        batch.bytes_read = consumed
        batch.more = not complete or not at_end or at_boundary
        if consumed or skipping != state.skipping:
            mark = fingerprint(*marks_after(head, tail, data[:consumed]))
            batch.state = replace(state, byte_offset=offset + consumed, skipping=skipping, fingerprint=mark)
        if successor is not None and not batch.more:
            return self._turn(batch, self._file.open_next(state.inode, successor), None)
        return batch

    @staticmethod
    def _segment(descriptor: int, offset: int, limit: int, segment_end: int | None) -> tuple[bytes, bool]:
        """The next bytes that belong to one attempt, and whether they reach its end or that of the file."""
        wanted = limit if segment_end is None else min(limit, segment_end - offset)
        data = os.pread(descriptor, wanted, offset)
        at_end = len(data) < wanted or (segment_end is not None and offset + len(data) == segment_end)
        return data, at_end

    def _take(self, batch: Batch, data: bytes, closing: bool) -> tuple[int, int, bool]:
        """Put the lines of ``data`` into the batch: (bytes consumed, bytes of an over-long line passed over, whether
        every complete line was taken)."""
        state = batch.state
        generation, offset = state.place
        if self._format.breaks_at_return:
            data = data.replace(b"\r", b"\n")
        start = 0
        if state.skipping:
            end = data.find(b"\n")
            passed = state.skipping + (len(data) if end < 0 else end)
            batch.long_line = (offset - state.skipping, passed)
            if end < 0:
                return len(data), 0 if closing else passed, True
            start = end + 1
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
        skipping = 0
        if complete and rest and (closing or len(rest) > MAX_LINE_BYTES):
            answer: Parsed = TOO_LONG if len(rest) > MAX_LINE_BYTES else self._format.parse_unterminated(rest)
            if isinstance(answer, Rejected):
                batch.reject(generation, position, rest, answer)
            elif answer is not None:
                batch.take(source_id, generation, position, answer)
            position += len(rest)
            skipping = 0 if closing else len(rest)
        return position - offset, skipping, complete

    def _turn(self, batch: Batch, inode: int, why: str | None) -> Batch:
        """End the batch by going on with another file, or with the same from its start."""
        batch.state = SourceState(inode, batch.state.generation + 1)
        batch.more = True
        batch.note = None if why is None else f"{self._file.path} {why}"
        return batch
