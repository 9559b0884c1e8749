"""Segments: the next bytes of one attempt in a file, whose whole lines or records are added to a batch."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch
from gputui.metrics.contract import MAX_LINE_BYTES, TOO_LONG, Parsed, Rejected, parse_values
from gputui.metrics.line_format import LineFormat
from gputui.metrics.record_format import MAX_RECORD_BYTES, DamagedRecordError, RecordFormat
from gputui.metrics.source_state import SourceState

_EXCERPT_BYTES = 200  # of a rejected record, for people


class Segment(NamedTuple):
    """Bytes of one attempt.

    Attributes:
        at_end: They reach the attempt's end, or the end of the file.
        at_boundary: They reach the place where the next attempt begins.
    """

    data: bytes
    at_end: bool
    at_boundary: bool


class Added(NamedTuple):
    """How much of some bytes was added to a batch.

    Attributes:
        size: How many bytes were consumed.
        in_long_line: They end within an over-long line.
        is_all: Every complete line or record was added.
    """

    size: int
    in_long_line: bool
    is_all: bool


def next_segment(descriptor: int, state: SourceState, attempt_end: int | None, line_format: LineFormat) -> Segment:
    """Read the next bytes after a state, with a whole line or record in them if there is one.

    Args:
        descriptor: The file's.
        state: What was read before.
        attempt_end: The offset at which the next attempt begins, None without one.
        line_format: The format that tells what is whole.
    """
    offset = state.byte_offset
    segment = _read(descriptor, offset, BATCH_BYTES, attempt_end)
    if segment.at_end or state.skipping or _has_whole(line_format, segment.data, offset):
        return segment
    longest = MAX_LINE_BYTES + 1
    if isinstance(line_format, RecordFormat):
        longest = 2 * MAX_RECORD_BYTES
    return _read(descriptor, offset, longest, attempt_end)


def _read(descriptor: int, offset: int, limit: int, attempt_end: int | None) -> Segment:
    if attempt_end is None:
        data = os.pread(descriptor, limit, offset)
        return Segment(data, at_end=len(data) < limit, at_boundary=False)
    size = min(limit, attempt_end - offset)
    data = os.pread(descriptor, size, offset)
    at_boundary = offset + len(data) >= attempt_end
    return Segment(data, at_end=len(data) < size or at_boundary, at_boundary=at_boundary)


def _has_whole(line_format: LineFormat, data: bytes, offset: int) -> bool:
    """Return whether data has a whole line or record, or a damaged one."""
    if not isinstance(line_format, RecordFormat):
        return b"\n" in data
    try:
        return any(True for _ in line_format.frames(data, offset))
    except DamagedRecordError:
        return True


def add_segment(line_format: LineFormat, batch: Batch, data: bytes, *, is_closed: bool) -> Added:
    """Add the lines or records of ``data``, which follows the batch's state. ``is_closed``: nothing follows it, so
    that a last line without a newline is complete, and half a record is passed over."""
    if isinstance(line_format, RecordFormat):
        return _add_records(line_format, batch, data, is_closed=is_closed)
    return _add_lines(line_format, batch, data, is_closed=is_closed)


def _add_lines(line_format: LineFormat, batch: Batch, data: bytes, *, is_closed: bool) -> Added:
    offset = batch.state.byte_offset
    if line_format.breaks_at_return:
        data = data.replace(b"\r", b"\n")
    start = 0
    if batch.state.skipping:
        start = data.find(b"\n") + 1
        if not start:
            return Added(len(data), in_long_line=not is_closed, is_all=True)
    *lines, rest = data[start:].split(b"\n", BATCH_LINES)
    is_all = len(lines) < BATCH_LINES
    position = offset + start
    for line in lines:
        batch.add(position, line, line_format.parse(line))
        position += len(line) + 1
        if line_format.has_news:
            # The file is read again, before more is learned without it.
            return Added(position - offset, in_long_line=False, is_all=False)
    if not is_all or not rest:
        return Added(position - offset, in_long_line=False, is_all=is_all)
    if len(rest) > MAX_LINE_BYTES:
        batch.add(position, rest, TOO_LONG)
    elif is_closed:
        batch.add(position, rest, line_format.parse_unterminated(rest))
    else:
        return Added(position - offset, in_long_line=False, is_all=True)
    return Added(position + len(rest) - offset, in_long_line=not is_closed, is_all=True)


def _add_records(record_format: RecordFormat, batch: Batch, data: bytes, *, is_closed: bool) -> Added:
    offset = batch.state.byte_offset
    consumed = 0
    deadline = time.monotonic() + READ_SECONDS
    try:
        for number, (end, content) in enumerate(record_format.frames(data, offset)):
            if number >= BATCH_LINES or (number and time.monotonic() >= deadline):
                return Added(consumed, in_long_line=False, is_all=False)
            batch.add(offset + consumed, content[:_EXCERPT_BYTES], _parse_record(record_format, content))
            consumed = end
    except DamagedRecordError as error:
        # The start of the next record is unknown, but data that is appended later may begin
        # with one.
        batch.add(offset + consumed, b"", Rejected(str(error)))
        consumed = len(data)
    if is_closed:
        consumed = len(data)
    return Added(consumed, in_long_line=False, is_all=True)


def _parse_record(record_format: RecordFormat, content: bytes) -> Parsed:
    """Parse the content of an intact frame; if it is damaged, the next record can be read all the same."""
    try:
        values = record_format.scalars(content)
        if values is None:
            return None
        return parse_values(values)
    except DamagedRecordError as error:
        return Rejected(str(error))
