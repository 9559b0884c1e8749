"""Read growing files of lines or records, through partial lines, rotation, truncation and
rewriting. The read position is the state that each call gets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gputui.metrics.batch import Batch, LineSource
from gputui.metrics.earlier_lines import EarlierLines, LineComparison
from gputui.metrics.files import FollowedFile, ends, ends_after, fingerprint, is_unchanged
from gputui.metrics.learned_texts import LearnedTexts
from gputui.metrics.line_format import LineFormat
from gputui.metrics.segments import add_segment, next_segment
from gputui.metrics.source_state import Boundary, SourceState, owner
from gputui.store.events import NewEvent
from gputui.store.metrics.stored_lines import FilePosition

HEADER_BYTES = 64 << 10
MAX_HISTORY_BYTES = 256 << 20  # it is read whole, and takes several times its size in memory


class ReadSource(NamedTuple):
    """The source of a reader: what its lines are read with, what is stored of the earlier versions of its file, and a
    clock (UTC unix seconds)."""

    lines: LineSource
    earlier: EarlierLines
    clock: Callable[[], float]

    def batch(self, state: SourceState, attempt: int, modified_at: float, comparison: LineComparison | None) -> Batch:
        """An empty batch of lines from a file that was modified at a time (UTC unix seconds): they may have been unread
        for hours, so that they are at most as new as the file."""
        return Batch(self.lines, state, attempt, min(self.clock(), modified_at), comparison)


class FileReader:
    """Reads the file at ``path``, or the newest that matches it if ``is_pattern``.

    A replaced file is first read to its end. Then its successor is read, from its start as the next
    generation unless it is a copy. Generations since ``first_generation`` are versions of one file.
    """

    def __init__(self, source: ReadSource, path: str, file_format: LineFormat, *, is_pattern: bool) -> None:
        self._source = source
        self._file = FollowedFile(path, is_pattern=is_pattern)
        self._format = file_format
        self._learned = LearnedTexts(source.lines.redactor)
        self._inherited = LearnedTexts(source.lines.redactor)
        # The generation whose header the format knows.
        self._begun: int | None = None

    def close(self) -> None:
        """Close open files; reading may continue afterwards."""
        self._file.close()

    def read(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool = False) -> Batch | None:
        """Read new lines; they are valid once they are committed with the batch's state.

        Args:
            state: What was read before.
            boundaries: Where attempts begin, sorted; nothing is read before the first one.
            ended: The last attempt has ended, so that an unfinished last line is final.

        Returns:
            None if there are no new lines.

        Raises:
            OSError: The file cannot be read.
        """
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
        if status is not None and status.st_ino == inode:
            successor = None
            descriptor = self._file.open_current(inode)
        else:
            successor = status
            descriptor = self._file.open_former(inode, *state.read_part)
        if descriptor is not None:
            is_followed = successor is not None and successor.st_size > 0
            batch = self._read_from(descriptor, state, boundaries, is_last=ended and not is_followed)
            if batch is None:
                next_inode = inode if successor is None else successor.st_ino
                return self._follow(next_inode, former=None, state=state, boundaries=boundaries)
            if batch.state != state:
                # At the end, the next read finds nothing new, and lets the format conclude.
                batch.more = batch.more or successor is not None or ended
                return batch
        if successor is not None:
            return self._follow(successor.st_ino, descriptor, state, boundaries)
        if ended and descriptor is not None:
            self._format.conclude()
            if self._format.has_news:
                return self._read_again(state)
        return None

    def _read_again(self, state: SourceState) -> Batch:
        """An empty batch, with the state at the beginning of the file, as if that had been rewritten: of
        its lines, what is stored already is left out."""
        self._format = self._format.restarted()
        again = SourceState(state.inode, state.generation + 1, first_generation=state.first_generation)
        return self._with_learned(Batch(self._source.lines, again, more=True))

    def _with_learned(self, batch: Batch) -> Batch:
        # Lines are kept in it as they were printed.
        batch.learned = self._learned.redacted(msgspec.to_builtins(self._format.learned, str_keys=True))
        batch.inherited = self._inherited.redacted(msgspec.to_builtins(self._format.inherited, str_keys=True))
        return batch

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state after everything that exists now, where the next attempt begins.

        Args:
            state: What was read before.
            at_most: The state at this offset is asked for, or at the start if the file is shorter.
        """
        status = self._file.status(at_once=True)
        following = state.generation + (state.inode is not None)
        if status is None or (descriptor := self._file.open_current(status.st_ino)) is None:
            return SourceState(None, following, first_generation=following)
        offset = os.fstat(descriptor).st_size
        if at_most is not None and at_most <= offset:
            offset = at_most
        elif at_most is not None:
            offset = 0
        generation = following
        if state.inode == status.st_ino and is_unchanged(descriptor, *state.read_part):
            generation = state.generation
        return SourceState(
            status.st_ino,
            generation,
            offset,
            skipping=False,
            fingerprint=fingerprint(*ends(descriptor, offset)),
            first_generation=generation,
        )

    def _read_from(
        self, descriptor: int, state: SourceState, boundaries: Sequence[Boundary], *, is_last: bool
    ) -> Batch | None:
        """The next lines of a file, or a batch with the same state if there are none; None if the
        bytes before them have changed. ``is_last``: a line without a newline is complete."""
        attempt, began, attempt_end = owner(boundaries, state.position)
        if attempt is None:
            return Batch(self._source.lines, state)
        segment = next_segment(descriptor, state, attempt_end, self._format)
        # Check after the read, so that data of a rewritten file is never taken for a continuation.
        head, tail = ends(descriptor, state.byte_offset)
        if state.fingerprint is not None and fingerprint(head, tail) != state.fingerprint:
            return None
        if self._format.has_header and not self._has_begun(descriptor, state, began, is_last=is_last):
            return Batch(self._source.lines, state)

        is_closed = segment.at_end and (segment.at_boundary or is_last)
        with comparison_with_earlier(self._source.earlier, began, state, attempt) as comparison:
            batch = self._source.batch(state, attempt, os.fstat(descriptor).st_mtime, comparison)
            added = add_segment(self._format, batch, segment.data, is_closed=is_closed)
            reached = state.byte_offset + added.size
            if comparison is not None:
                comparison.pass_to(reached)
        self._note_arrival(batch, reached)
        if self._format.has_news:
            return self._read_again(state)
        if self._format.remark is not None:
            batch.notes["steps_converted"] = NewEvent("steps_converted", self._format.remark)
        batch.more = not added.is_all or not segment.at_end or segment.at_boundary
        if not added.size and added.in_long_line == state.skipping:
            return batch
        mark = fingerprint(*ends_after(head, tail, segment.data[: added.size]))
        batch.state = replace(state, byte_offset=reached, skipping=added.in_long_line, fingerprint=mark)
        if batch.state == state:
            return batch
        return self._with_learned(batch)

    def _note_arrival(self, batch: Batch, reached: int) -> None:
        arrivals = self._source.lines.arrivals
        if arrivals is not None and batch.arrived_at is not None:
            arrivals.note(batch.state.inode, reached, batch.arrived_at)

    def _has_begun(self, descriptor: int, state: SourceState, began: FilePosition, *, is_last: bool) -> bool:
        """Give the format the header of this generation; False if that is not complete yet."""
        if self._begun == state.generation:
            return True
        header = _first_line(descriptor)
        if header is None and not is_last:
            return False
        own_header = None
        generation, offset = began
        if generation == state.generation and offset < state.byte_offset:
            own_header = _first_line(descriptor, offset)
        self._format.begin(header or b"", own_header or b"")
        self._begun = state.generation
        return True

    def _follow(
        self, inode: int, former: int | None, state: SourceState, boundaries: Sequence[Boundary]
    ) -> Batch | None:
        """Continue with the file of this inode, a new one or one with other content. ``former`` is
        the replaced file, if it is still open.

        A file that begins with what was read is continued. Another version of the file that was read
        begins the next generation, and another file a first generation.
        """
        if former is not None and state.inode is not None:
            inode = self._file.open_next(state.inode, inode)
        descriptor = self._file.open_current(inode)
        if descriptor is None or not os.fstat(descriptor).st_size:
            return None  # It has just been replaced or truncated.
        status = os.fstat(descriptor)
        is_new = status.st_ino != state.inode
        is_start = _is_at_newest_attempt(state, boundaries)
        is_own_file = is_start and is_new and self._file.matches is not None
        is_other_file = self._format.breaks_at_return or is_own_file
        if is_new and not is_other_file and _is_continued(descriptor, state):
            # The next attempt may have begun in this file, which was not known yet.
            is_next = boundaries[-1].generation > state.generation
            continued = replace(state, inode=inode, generation=state.generation + is_next)
            return Batch(self._source.lines, continued, more=True)
        if former is not None:
            # The incomplete line at the end of a file that is no longer written.
            rest = self._read_from(former, state, boundaries, is_last=True)
            if rest is not None and rest.state != state:
                rest.more = True
                return rest
        is_rotated = former is not None and os.fstat(former).st_nlink > 0
        is_shorter = is_start and status.st_size < state.byte_offset
        is_begun_anew = is_shorter and not self._source.earlier.is_resumed(boundaries[-1].attempt)
        generation = state.generation + 1
        first_generation = state.first_generation
        if is_other_file or is_rotated or is_begun_anew:
            first_generation = generation
        begun = SourceState(inode, generation, first_generation=first_generation)
        return Batch(self._source.lines, begun, more=True)


def _is_at_newest_attempt(state: SourceState, boundaries: Sequence[Boundary]) -> bool:
    """Return whether the newest attempt, which is not the first one, has no line yet in the file that its start has
    seen. A newer file is its own then, and a shorter one too if it began from the start, even if another attempt has
    written the same lines."""
    newest = boundaries[-1]
    begin = (newest.generation, newest.byte_offset)
    return len(boundaries) > 1 and newest.generation == state.generation and state.position <= begin


def _is_continued(descriptor: int, state: SourceState) -> bool:
    """Return whether a file begins with all that was read of another one."""
    is_long_enough = 0 < state.byte_offset <= os.fstat(descriptor).st_size
    return is_long_enough and is_unchanged(descriptor, *state.read_part)


def comparison_with_earlier(
    earlier: EarlierLines, began: FilePosition, state: SourceState, attempt: int
) -> AbstractContextManager[LineComparison | None]:
    """The comparison of new lines with earlier versions of their file; none where these have no copies.

    Args:
        began: Where the attempt began: one that began in this version writes no copies of earlier lines.
        state: What was read before.
    """
    generation, _ = began
    has_earlier = generation < state.generation and state.first_generation < state.generation
    if has_earlier and not earlier.is_passed(state, attempt):
        return earlier.comparison(state, attempt)
    return nullcontext()


def _first_line(descriptor: int, offset: int = 0) -> bytes | None:
    """The first line of a file, or from an offset on; None if it is not complete yet."""
    line, newline, _ = os.pread(descriptor, HEADER_BYTES, offset).partition(b"\n")
    if newline:
        return line
    return None
