"""Following one growing file of lines: partial lines, rotation, truncation and restarts included.

Nothing that matters is remembered here: the read position is the committed state that each call gets. Only open
files are kept, so that one that was renamed or deleted can still be read to its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress, repeat

from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, Batch, MetricsNote, SourceState
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, Parsed, ParsedLine, Rejected
from gputui.metrics.earlier_lines import EarlierLines
from gputui.metrics.files import FollowedFile, fingerprint, is_unchanged, marks, marks_after
from gputui.metrics.formats import LineFormat
from gputui.metrics.marks import LONG_LINE_MARK, KnownMarks, MarkComparison, Verdict
from gputui.metrics.source_reader import Boundary, attempt_place, owning_attempt
from gputui.redaction import BY_LOOK, Redactor
from gputui.store.events import EventKind

HEADER_BYTES = 64 << 10
# A new attempt whose file stays shorter than what was read for so long has restarted it: nothing is busy writing all of
# it again.
SHORT_SECONDS = 2.0


class SourceTailer:
    """Reads the lines of the file at ``path``, or of the first that matches it where ``is_pattern``. ``known`` answers
    marks of lines that were stored, ``earlier`` which lines of a rewritten file are known; ``clock`` gives UTC unix
    seconds.

    A file that is replaced is read to its end first. The new one, and one that was truncated or rewritten, is compared
    with the lines that were read: where it begins with them it is read on behind them; where it ends within them, as
    one does that is just being written again, it is waited for; where it differs, it is read from there on as the next
    generation, without the lines that its attempt had stored from an earlier version of it.
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
        self.is_busy = False
        self._clock = clock
        self._source_id = source_id
        self._redactor = redactor
        self._format = line_format
        self._file = FollowedFile(path, is_pattern=is_pattern)
        self._known = known
        self._earlier = earlier
        self._begun: tuple[int, int] | None = None
        self._unchanged: tuple[object, ...] | None = None
        self._comparison: MarkComparison | None = None
        self._compared: str | None = None
        self._short_since: float | None = None

    def close(self) -> None:
        """Let go of open files; reading may continue afterwards."""
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
        self.is_busy = False
        if not boundaries:
            return None
        # The path is looked at before the old file is read to its end: whoever has opened a new file there has
        # written its last line to the old one.
        status = self._file.status(at_once=ended)
        if state.inode is None:
            if status is None:
                return None
            state = replace(state, inode=status.st_ino)
        inode = state.inode
        assert inode is not None
        if state.skipping and any(boundary[:2] == state.place for boundary in boundaries):
            # An over-long line ends where the next attempt begins, with or without a newline.
            state = replace(state, skipping=0)
        self._file.keep_only(inode)
        successor = None if status is None or status.st_ino == inode else status.st_ino
        if status is not None and successor is None:
            descriptor = self._file.open_current(inode)
        else:
            descriptor = self._file.open_former(inode, state.byte_offset, state.fingerprint)
        seen = None
        if status is not None:
            former_bytes = 0 if successor is None or descriptor is None else os.fstat(descriptor).st_size
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
            seen = (state, *now, former_bytes, len(boundaries), ended)
            if seen == self._unchanged:
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
                return self._follow(successor, descriptor, state, boundaries, ended, seen)
            return self._follow(successor, None, state, boundaries, ended, seen)
        if is_rewritten:
            return self._follow(inode, None, state, boundaries, ended, seen)
        self._unchanged = seen
        return None

    def end_place(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_place."""
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
        """The next lines of a file, or a batch with the same state if there are none; None if what lies before
        them is not what was read. ``is_last``: nothing follows on a line without a newline."""
        assert state.inode is not None
        attempt, segment_end = owning_attempt(boundaries, state.place)
        if attempt is None:
            return Batch(state, 0, self._redactor)
        offset = state.byte_offset
        data, at_end = self._segment(descriptor, offset, limit, segment_end)
        if not at_end and not state.skipping and b"\n" not in data:
            data, at_end = self._segment(descriptor, offset, MAX_LINE_BYTES + 1, segment_end)
        # Looked at after the reading: nothing of a rewritten file may pass for the continuation of the old one.
        head, tail = marks(descriptor, offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return None
        if self._format.has_header and self._begun != (state.inode, state.generation):
            header = _first_line(descriptor)
            if header is None and not is_last:
                return Batch(state, attempt, self._redactor)
            self._format.begin(header or b"")
            self._begun = (state.inode, state.generation)

        at_boundary = segment_end is not None and offset + len(data) >= segment_end
        # What stayed unread for hours was not written now.
        arrived_at = min(self._clock(), os.fstat(descriptor).st_mtime)
        batch = Batch(state, attempt, self._redactor, arrived_at)
        began = attempt_place(boundaries, state.place)
        # What an attempt appends that began within this version of the file is no copy of earlier lines.
        is_copied = began is not None and began[0] < state.generation
        consumed, skipping, complete = self._take(batch, data, at_end and (at_boundary or is_last), is_copied)
        batch.bytes_read = consumed
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
                self._earlier.go_to(batch.state)
        return batch

    # --- a file in the old one's place --------------------------------------------------------------------------------

    def _follow(
        self,
        inode: int,
        former: int | None,
        state: SourceState,
        boundaries: Sequence[Boundary],
        ended: bool,
        seen: tuple[object, ...] | None,
    ) -> Batch | None:
        """Go on with the file with this inode, which is at the path now, or the same as before with other content.
        ``former`` is the old file, whose lines were read, where it is another and still there."""
        assert state.inode is not None
        if former is not None:
            inode = self._file.open_next(state.inode, inode)
        descriptor = self._file.open_current(inode)
        if descriptor is None:
            # It was replaced in this moment.
            self.is_busy = True
            return None
        verdict: Verdict = "differs"
        comparison = None
        if state.mark_count is not None:
            comparison = self._compared_with(descriptor, inode, state.mark_count)
            verdict = comparison.go_on(descriptor)
            self._compared = fingerprint(*marks(descriptor, comparison.place))
        if verdict == "comparing":
            self.is_busy = True
            return None
        if verdict == "short":
            own_lines = state.place > boundaries[-1][:2] or len(boundaries) == 1
            if own_lines or not self._stays_short(ended):
                if ended and former is not None:
                    closed = self._closed(former, state, boundaries)
                    if closed is not None:
                        return closed
                # With own lines nothing is to be decided before the file changes.
                self._unchanged = seen if own_lines else None
                return None
            # What an attempt writes that has no lines yet is its own, though another has written the same.
            comparison = None
        if former is not None and not (verdict == "all" and self._goes_on(former, state.byte_offset, descriptor)):
            closed = self._closed(former, state, boundaries)
            if closed is not None:
                return closed
        return self._turn(inode, descriptor, former, state, boundaries, comparison, is_whole=verdict == "all")

    def _compared_with(self, descriptor: int, inode: int, total: int) -> MarkComparison:
        """The comparison that was begun with this file, where the file is as it was then; else a new one."""
        # The format knows one header at a time, and the old file was just looked at.
        self._begun = None
        header = _first_line(descriptor)
        if self._format.has_header and header is not None:
            self._format.begin(header)
        known = self._comparison
        if (
            known is not None
            and (known.inode, known.total) == (inode, total)
            and is_unchanged(descriptor, known.place, self._compared)
            and known.place
        ):
            return known
        if known is None or known.inode != inode:
            self._short_since = None
        self._comparison = MarkComparison(inode, total, self._known, self._format.mark)
        return self._comparison

    def _stays_short(self, ended: bool) -> bool:
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        return ended or now - self._short_since >= SHORT_SECONDS

    def _goes_on(self, former: int, offset: int, descriptor: int) -> bool:
        """Whether the new file has also what stood without a newline at the old one's end."""
        rest = os.pread(former, MAX_LINE_BYTES, offset)
        assert self._comparison is not None
        return os.pread(descriptor, len(rest), self._comparison.place) == rest

    def _closed(self, former: int, state: SourceState, boundaries: Sequence[Boundary]) -> Batch | None:
        """The text without a newline at the end of a file without a writer; None if there is none."""
        batch = self._read_from(former, state, boundaries, BATCH_BYTES, True)
        if batch is None or batch.state == state:
            return None
        batch.more = True
        return batch

    def _turn(
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
        """Go on in the file with this inode, behind the lines that were found to be equal."""
        self._comparison, self._short_since, self._begun = None, None, None
        place, lines = (0, 0) if comparison is None else (comparison.place, comparison.lines)
        stays = is_whole and place == state.byte_offset and boundaries[-1].generation <= state.generation
        kind: EventKind | None = None
        why = ""
        if not is_whole:
            if inode == state.inode:
                kind, why = "metrics_rewritten", "was rewritten; it is read from the first line that is another"
            elif former is None:
                kind, why = "metrics_lost", "was replaced while no agent was reading it; its unread lines are lost"
            elif os.fstat(former).st_nlink == 0 and lines > self._format.has_header:
                kind, why = "metrics_replaced", "was replaced; the new one is read from the first line that is another"
        batch = Batch(state, 0, self._redactor, more=True)
        batch.state = SourceState(
            inode,
            state.generation + (not stays),
            place,
            0,
            fingerprint(*marks(descriptor, place)),
            None if self._format.breaks_at_return else lines,
            state.is_rewritten or kind is not None,
        )
        began = attempt_place(boundaries, batch.state.place)
        is_other_attempt = began is None or began >= state.place
        # A file that was put aside by a rotation is followed by one that is no copy of it.
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
        """The next bytes that belong to one attempt, and whether they reach its end or that of the file."""
        wanted = limit if segment_end is None else min(limit, segment_end - offset)
        data = os.pread(descriptor, wanted, offset)
        at_end = len(data) < wanted or (segment_end is not None and offset + len(data) == segment_end)
        return data, at_end

    def _take(self, batch: Batch, data: bytes, closing: bool, is_copied: bool) -> tuple[int, int, bool]:
        """Put the lines of ``data`` into the batch, where ``is_copied`` without the known ones: (bytes consumed, bytes
        of an over-long line passed over, whether every complete line was taken)."""
        state = batch.state
        generation, offset = state.place
        is_listed = state.mark_count is not None and self._earlier.are_listed(state)
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


def _first_line(descriptor: int) -> bytes | None:
    """The first line of a file; None if it is not complete yet."""
    line, newline, _ = os.pread(descriptor, HEADER_BYTES, 0).partition(b"\n")
    return line if newline else None
