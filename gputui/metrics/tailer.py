"""Follow a growing file of lines, through partial lines, rotation, truncation and rewriting.

The read position is the committed state that each call gets. Only open files are kept, so that a renamed or deleted one
can be read to its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat

from msgspec.structs import replace

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, Batch, MetricsNote, SourceState
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, Parsed, ParsedLine, Rejected
from gputui.metrics.earlier_lines import EarlierLines
from gputui.metrics.files import FileFollower, fingerprint, is_unchanged, marks, marks_after
from gputui.metrics.formats import LineFormat
from gputui.metrics.marks import LONG_LINE_MARK, KnownMarks, MarkComparison, Verdict
from gputui.metrics.source_reader import Boundary, attempt_begin, owning_attempt
from gputui.store.events import EventKind

HEADER_BYTES = 64 << 10
# A file that stays shorter than what was read for so long has been restarted by a new attempt, not rewritten.
SHORT_SECONDS = 2.0


class SourceTailer(FileFollower):
    """Reads the lines of the file at ``path``, or of the first file that matches it if ``is_pattern``. ``known``
    returns marks of stored lines, ``earlier`` knows the lines of a rewritten file; ``clock`` gives UTC unix seconds.

    A replaced file is first read to its end. Its successor, and a truncated or rewritten file, is compared with the
    lines that were read. If it begins with all of them, reading continues behind them. If it ends within them, it is
    probably being written again, and is waited for. If it differs, it is read from the first different line as the next
    generation, without the lines that its attempt had stored from an earlier version.
    """

    def __init__(
        self,
        source_id: int,
        path: str,
        line_format: LineFormat,
        redactor: Redactor = BY_LOOK,
        *,
        is_pattern: bool = False,
        known: KnownMarks,
        earlier: EarlierLines,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, is_pattern=is_pattern)
        self._clock = clock
        self._source_id = source_id
        self._redactor = redactor
        self._format = line_format
        self._known = known
        self._earlier = earlier
        self._begun: tuple[int, int] | None = None
        self._unchanged: tuple[object, ...] | None = None
        self._comparison: MarkComparison | None = None
        self._compared: str | None = None
        self._short_since: float | None = None

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. Reads nothing before the first boundary, since no attempt has begun."""
        self.is_busy = False
        if not boundaries:
            return None
        # Check the path before reading the old file to its end: a writer that has opened a new file there writes no
        # more to the old one.
        status = self._file.status(at_once=ended)
        if state.inode is None:
            if status is None:
                return None
            state = replace(state, inode=status.st_ino)
        inode = state.inode
        assert inode is not None
        if state.skipping and any(boundary[:2] == state.position for boundary in boundaries):
            # An over-long line ends where the next attempt begins.
            state = replace(state, skipping=0)
        self._file.keep_only(inode)
        successor = None if status is None or status.st_ino == inode else status.st_ino
        if status is not None and successor is None:
            descriptor = self._file.open_current(inode)
        else:
            descriptor = self._file.open_former(inode, state.byte_offset, state.fingerprint)
        file_state = None
        if status is not None:
            former_bytes = 0 if successor is None or descriptor is None else os.fstat(descriptor).st_size
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
            file_state = (state, *now, former_bytes, len(boundaries), ended)
            if file_state == self._unchanged:
                return None
        self._unchanged = None
        is_rewritten = False
        if descriptor is not None:
            batch = self._read_from(
                descriptor, state, boundaries, min(budget_bytes, BATCH_BYTES), ended and successor is None
            )
            if batch is None:
                is_rewritten = True
            elif batch.state != state:
                self._comparison = None
                batch.more = batch.more or successor is not None
                return batch
        if successor is not None:
            if descriptor is not None and not is_rewritten:
                return self._follow(successor, descriptor, state, boundaries, ended, file_state)
            return self._follow(successor, None, state, boundaries, ended, file_state)
        if is_rewritten:
            return self._follow(inode, None, state, boundaries, ended, file_state)
        self._unchanged = file_state
        return None

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state."""
        status = self._file.status(at_once=True)
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
        self, descriptor: int, state: SourceState, boundaries: Sequence[Boundary], limit: int, is_last: bool
    ) -> Batch | None:
        """The next lines of a file, or a batch with the same state if there are none; None if the lines before them
        have changed. ``is_last``: a line without a newline is complete."""
        assert state.inode is not None
        attempt, segment_end = owning_attempt(boundaries, state.position)
        if attempt is None:
            return Batch(state, 0, self._redactor)
        offset = state.byte_offset
        data, at_end = self._segment(descriptor, offset, limit, segment_end)
        if not at_end and not state.skipping and b"\n" not in data:
            data, at_end = self._segment(descriptor, offset, MAX_LINE_BYTES + 1, segment_end)
        # Check after the read, so that data of a rewritten file is never taken for a continuation.
        head, tail = marks(descriptor, offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return None
        if self._format.has_header and self._begun != (state.inode, state.generation):
            header = _first_line(descriptor)
            if header is None and not is_last:
                return Batch(state, attempt, self._redactor)
            self._format.begin(header or b"", self._attempts_first_line(descriptor, state, boundaries))
            self._begun = (state.inode, state.generation)

        at_boundary = segment_end is not None and offset + len(data) >= segment_end
        # Lines may have been unread for hours, so they are at most as new as the file.
        arrived_at = min(self._clock(), os.fstat(descriptor).st_mtime)
        batch = Batch(state, attempt, self._redactor, arrived_at)
        began = attempt_begin(boundaries, state.position)
        # An attempt that began in this version of the file writes no copies of earlier lines.
        is_copied = began is not None and began[0] < state.generation
        consumed, skipping, complete = self._take(batch, data, at_end and (at_boundary or is_last), is_copied)
        batch.bytes_read = consumed
        batch.learned = self._format.learned
        batch.more = not complete or not at_end or at_boundary
        if consumed or skipping != state.skipping:
            count = None if state.mark_count is None else state.mark_count + len(batch.marks)
            batch.state = replace(
                state,
                byte_offset=offset + consumed,
                skipping=skipping,
                fingerprint=fingerprint(*marks_after(head, tail, data[:consumed])),
                mark_count=count,
            )
            if count is not None:
                self._earlier.advance_to(batch.state)
        return batch

    # --- replaced and rewritten files --------------------------------------------------------------------------------

    def _follow(
        self,
        inode: int,
        former: int | None,
        state: SourceState,
        boundaries: Sequence[Boundary],
        ended: bool,
        file_state: tuple[object, ...] | None,
    ) -> Batch | None:
        """Continue with the file of this inode, a new one or one with other content. ``former`` is the replaced file,
        if it is still open."""
        assert state.inode is not None
        if former is not None:
            inode = self._file.open_next(state.inode, inode)
        descriptor = self._file.open_current(inode)
        if descriptor is None:
            # It has just been replaced.
            self.is_busy = True
            return None
        verdict: Verdict = "differs"
        comparison = None
        if state.mark_count is not None:
            comparison = self._compared_with(descriptor, inode, state.mark_count)
            verdict = comparison.advance(descriptor)
            self._compared = fingerprint(*marks(descriptor, comparison.offset))
        if verdict == "comparing":
            self.is_busy = True
            return None
        if verdict == "short":
            own_lines = state.position > boundaries[-1][:2] or len(boundaries) == 1
            if own_lines or not self._is_restarted(ended):
                if ended and former is not None:
                    closed = self._closed(former, state, boundaries)
                    if closed is not None:
                        return closed
                # If the attempt has lines, wait until the file changes.
                self._unchanged = file_state if own_lines else None
                return None
            # The first lines of an attempt are its own, even if another has written the same.
            comparison = None
        if former is not None and not (verdict == "all" and self._has_same_rest(former, state.byte_offset, descriptor)):
            closed = self._closed(former, state, boundaries)
            if closed is not None:
                return closed
        return self._switch(inode, descriptor, former, state, boundaries, comparison, is_whole=verdict == "all")

    def _compared_with(self, descriptor: int, inode: int, total: int) -> MarkComparison:
        """The comparison with this file that has begun, if the file has not changed since; else a new one."""
        known = self._comparison
        continues = (
            known is not None
            and (known.inode, known.total) == (inode, total)
            and is_unchanged(descriptor, known.offset, self._compared)
            and known.offset
        )
        header = _first_line(descriptor)
        if self._format.has_header and header is not None and not (continues and self._begun is None):
            # The format still has the header of the old file.
            self._format.begin(header)
        self._begun = None
        if known is not None and continues:
            return known
        if known is None or known.inode != inode:
            self._short_since = None
        self._comparison = MarkComparison(inode, total, self._known, self._format.mark)
        return self._comparison

    @staticmethod
    def _attempts_first_line(descriptor: int, state: SourceState, boundaries: Sequence[Boundary]) -> bytes:
        """The line at which the attempt of ``state`` begins in this version of the file; empty before it is read."""
        began = attempt_begin(boundaries, state.position)
        if began is None or began[0] != state.generation or began[1] >= state.byte_offset:
            return b""
        return _first_line(descriptor, began[1]) or b""

    def _is_restarted(self, ended: bool) -> bool:
        """Whether the file has been short for so long that a new attempt must have restarted it."""
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        return ended or now - self._short_since >= SHORT_SECONDS

    def _has_same_rest(self, former: int, offset: int, descriptor: int) -> bool:
        """Whether the new file also has the incomplete line at the old file's end."""
        rest = os.pread(former, MAX_LINE_BYTES, offset)
        assert self._comparison is not None
        return os.pread(descriptor, len(rest), self._comparison.offset) == rest

    def _closed(self, former: int, state: SourceState, boundaries: Sequence[Boundary]) -> Batch | None:
        """The incomplete line at the end of a file that is no longer written; None if there is none."""
        batch = self._read_from(former, state, boundaries, BATCH_BYTES, True)
        if batch is None or batch.state == state:
            return None
        batch.more = True
        return batch

    def _switch(
        self,
        inode: int,
        descriptor: int,
        former: int | None,
        state: SourceState,
        boundaries: Sequence[Boundary],
        comparison: MarkComparison | None,
        *,
        is_whole: bool,
    ) -> Batch:
        """Continue in the file of this inode, behind the lines that are equal."""
        self._comparison, self._short_since, self._begun = None, None, None
        offset, lines = (0, 0) if comparison is None else (comparison.offset, comparison.lines)
        stays = is_whole and offset == state.byte_offset and boundaries[-1].generation <= state.generation
        kind: EventKind | None = None
        why = ""
        if not is_whole:
            if inode == state.inode:
                kind, why = "metrics_rewritten", "was rewritten; it is read from the first line that is another"
            elif former is None:
                # In custody, it may have been another run's.
                if self.custody is None:
                    kind, why = "metrics_lost", "was replaced while no agent was reading it; its unread lines are lost"
            elif os.fstat(former).st_nlink == 0 and lines > self._format.has_header:
                kind, why = "metrics_replaced", "was replaced; the new one is read from the first line that is another"
        batch = Batch(state, 0, self._redactor, more=True)
        batch.state = SourceState(
            inode,
            state.generation + (not stays),
            offset,
            0,
            fingerprint(*marks(descriptor, offset)),
            None if self._format.breaks_at_return else lines,
            state.is_rewritten or kind is not None,
        )
        began = attempt_begin(boundaries, batch.state.position)
        is_other_attempt = began is None or began >= state.position
        # After a rotation the new file is no copy of the old one.
        is_rotated = former is not None and os.fstat(former).st_nlink > 0
        if is_other_attempt or (is_rotated and not is_whole):
            batch.clears_list = True
            self._earlier.forget(batch.state)
        elif not is_whole:
            batch.listed = self._earlier.drop(state, batch.state)
        if kind is not None and not state.is_rewritten:
            batch.note = MetricsNote(kind, str(self._file.path), f"{self._file.path} {why}")
        return batch

    @staticmethod
    def _segment(descriptor: int, offset: int, limit: int, segment_end: int | None) -> tuple[bytes, bool]:
        """The next bytes that belong to one attempt, and whether they reach its end or the end of the file."""
        wanted = limit if segment_end is None else min(limit, segment_end - offset)
        data = os.pread(descriptor, wanted, offset)
        at_end = len(data) < wanted or (segment_end is not None and offset + len(data) == segment_end)
        return data, at_end

    def _take(self, batch: Batch, data: bytes, closing: bool, is_copied: bool) -> tuple[int, int, bool]:
        """Add the lines of ``data`` to the batch, without known ones if ``is_copied``. Returns the consumed bytes, the
        skipped bytes of an over-long line, and whether every complete line was added."""
        state = batch.state
        generation, offset = state.position
        is_listed = state.mark_count is not None and self._earlier.has_list(state)
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
        takes_rest = complete and bool(rest) and (closing or len(rest) > MAX_LINE_BYTES)
        if state.mark_count is not None:
            batch.marks.extend(map(self._format.mark, lines))
            if takes_rest:
                batch.marks.append(LONG_LINE_MARK if len(rest) > MAX_LINE_BYTES else self._format.mark(rest))
        are_new: Iterable[bool] = repeat(True)
        if is_listed:
            if is_copied:
                are_new = self._earlier.new_ones(state, batch.marks)
            batch.listed.extend(compress(batch.marks, are_new))
        position = offset + start
        parse = self._format.parse
        source_id = self._source_id
        new = iter(are_new)
        for line, is_new in zip(lines, new, strict=False):
            if is_new:
                parsed = parse(line)
                if type(parsed) is ParsedLine:
                    batch.take(source_id, generation, position, parsed)
                elif isinstance(parsed, Rejected):
                    batch.reject(generation, position, line, parsed)
            position += len(line) + 1
        skipping = 0
        if takes_rest:
            answer: Parsed = TOO_LONG if len(rest) > MAX_LINE_BYTES else self._format.parse_unterminated(rest)
            if not next(new):
                answer = None
            if isinstance(answer, Rejected):
                batch.reject(generation, position, rest, answer)
            elif answer is not None:
                batch.take(source_id, generation, position, answer)
            position += len(rest)
            skipping = 0 if closing else len(rest)
        return position - offset, skipping, complete


def _first_line(descriptor: int, offset: int = 0) -> bytes | None:
    """The first line of a file, or from an offset on; None if it is not complete yet."""
    line, newline, _ = os.pread(descriptor, HEADER_BYTES, offset).partition(b"\n")
    return line if newline else None
