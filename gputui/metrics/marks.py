"""The lines of a file that were read, as a CRC-32 of each, stored beside the offset.

A script may rewrite its file at each epoch, or add a column to it. Such a file is compared with the marks, so that only
new lines are stored.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gputui.metrics.contract import MAX_LINE_BYTES

MARK_BYTES = 4
BLOCK_LINES = 256
COMPARED_BYTES = 1 << 20

# The list of a rewritten file is stored in the blocks -1, -2, …, at most this many.
LISTED_BLOCKS = 256
LISTED_LINES = LISTED_BLOCKS * BLOCK_LINES

LONG_LINE_MARK = 1
"""The mark of every over-long line."""

KnownMarks = Callable[[int, int], bytes]
"""(start, count) → the packed marks of these lines of a source."""

Verdict = Literal["comparing", "all", "short", "differs"]


def packed(marks: array[int]) -> bytes:
    """Marks in their stored form."""
    if sys.byteorder == "big":
        marks = marks[:]
        marks.byteswap()
    return marks.tobytes()


def unpacked(data: bytes) -> array[int]:
    """The reverse of `packed`."""
    marks = array("I", data)
    if sys.byteorder == "big":
        marks.byteswap()
    return marks


def common(one: bytes, other: bytes) -> int:
    """The length of the common prefix of two packed sequences of marks, in lines."""
    low, high = 0, min(len(one), len(other)) // MARK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * MARK_BYTES] == other[: middle * MARK_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(slots=True, eq=False)
class MarkComparison:
    """How far the file of this inode begins with the ``total`` lines that were read before. ``offset`` (bytes) and
    ``lines`` are the progress. Nothing is stored: a new agent compares again."""

    inode: int
    total: int
    known: KnownMarks
    mark: Callable[[bytes], int]
    offset: int = 0
    lines: int = 0

    def advance(self, descriptor: int) -> Verdict:
        """Compare the next megabyte. The verdict is "all" if the file has all lines that were read, "short" if it ends
        before, "differs" after ``lines`` of them, else "comparing". Raises OSError."""
        if self.lines == self.total:
            return "all"
        data = os.pread(descriptor, COMPARED_BYTES, self.offset)
        at_end = len(data) < COMPARED_BYTES
        lines = data.split(b"\n")
        if len(lines.pop()) > MAX_LINE_BYTES or (not lines and not at_end):
            return "differs"
        del lines[self.total - self.lines :]
        found = packed(array("I", map(self.mark, lines)))
        equal = common(found, self.known(self.lines, len(lines)))
        self.offset += sum(map(len, lines[:equal])) + equal
        self.lines += equal
        if equal < len(lines):
            return "differs"
        if self.lines == self.total:
            return "all"
        return "short" if at_end else "comparing"


def stored_marks(connection: sqlite3.Connection, source_id: int, start: int, count: int) -> bytes:
    """The packed marks of ``count`` lines from number ``start`` on. Raises sqlite3.Error."""
    if count <= 0:
        return b""
    first, last = start // BLOCK_LINES, (start + count - 1) // BLOCK_LINES
    rows = connection.execute(
        "SELECT marks FROM line_marks WHERE source_id = ? AND block BETWEEN ? AND ? ORDER BY block",
        (source_id, first, last),
    ).fetchall()
    begin = (start - first * BLOCK_LINES) * MARK_BYTES
    return b"".join(row[0] for row in rows)[begin : begin + count * MARK_BYTES]


def store_marks(connection: sqlite3.Connection, source_id: int, start: int, marks: bytes) -> None:
    """Replace all marks from the number ``start`` on, inside the caller's transaction. Raises sqlite3.Error."""
    block, within = divmod(start, BLOCK_LINES)
    data = stored_marks(connection, source_id, block * BLOCK_LINES, within) + marks
    connection.execute("DELETE FROM line_marks WHERE source_id = ? AND block >= ?", (source_id, block))
    size = BLOCK_LINES * MARK_BYTES
    connection.executemany(
        "INSERT INTO line_marks (source_id, block, marks) VALUES (?, ?, ?)",
        [(source_id, block + at // size, data[at : at + size]) for at in range(0, len(data), size)],
    )


def listed_marks(connection: sqlite3.Connection, source_id: int) -> bytes:
    """The marks of the newest LISTED_LINES lines that were stored from any version of a rewritten file; none for other
    files. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT marks FROM line_marks WHERE source_id = ? AND block < 0 ORDER BY block LIMIT ?",
        (source_id, LISTED_BLOCKS),
    )
    return b"".join(row[0] for row in rows)


def list_marks(connection: sqlite3.Connection, source_id: int, marks: bytes) -> None:
    """Add marks to that list, inside the caller's transaction. Raises sqlite3.Error."""
    row = connection.execute(
        "SELECT block, marks FROM line_marks WHERE source_id = ? AND block < 0 ORDER BY block LIMIT 1", (source_id,)
    ).fetchone()
    block, data = row or (-1, b"")
    data += marks
    size = BLOCK_LINES * MARK_BYTES
    connection.executemany(
        "INSERT OR REPLACE INTO line_marks (source_id, block, marks) VALUES (?, ?, ?)",
        [(source_id, block - at // size, data[at : at + size]) for at in range(0, len(data), size)],
    )
    newest = block - (len(data) - 1) // size
    connection.execute(
        "DELETE FROM line_marks WHERE source_id = ? AND block >= ? AND block < 0", (source_id, newest + LISTED_BLOCKS)
    )


def clear_list(connection: sqlite3.Connection, source_id: int) -> None:
    """Delete that list. Raises sqlite3.Error."""
    connection.execute("DELETE FROM line_marks WHERE source_id = ? AND block < 0", (source_id,))
