"""CSV: a row per line, a column per metric. For a new metric the file is rewritten with another column and replaced.

Exactly once: the position is the number of rows, and rows behind it are removed before they are written again.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gputui.reports.export.line_file import LineFile
from gputui.reports.export.sink import Begun, ExportError, Position
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item
from gputui.store.metrics.queries import StoredLine

KEYS = ("attempt", "rank", "step", "time")
MAX_COLUMNS = 5000
_PIECE_BYTES = 1 << 20


class CsvSink:
    """A CSV file with the columns KEYS and one per metric."""

    def __init__(self, subject: Subject, target: str, key: str) -> None:
        self._about = subject.about(key)
        self._first_names = tuple(dict.fromkeys(map(_unicode, subject.metrics)))
        self._names: list[str] = []
        self._file = LineFile(Path(target))
        self._rows = 0
        self.written = 0

    def refuse_taken(self) -> None:
        self._file.refuse_taken()

    def origin(self) -> Position:
        return {"rows": 0}

    def begin(self, position: Position) -> Begun:
        wanted = int(position["rows"])
        there = self._file.open()
        end = self._end_of_row(wanted) if wanted and there else None
        if end is None:
            self._file.cut(0)
            self._names = list(self._first_names)
            self._file.append(_encoded([(*KEYS, *self._names)]))
            self._rows = 0
            return Begun({"rows": 0}, True)
        self._file.cut(end)
        self._rows = wanted
        return Begun({"rows": wanted}, False)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        if not self._file.is_still_there():
            raise ExportError(f"{self._file.path} was moved or removed")
        lines = [
            (item, {_unicode(name): value for name, value in values.items()})
            for item in items
            if isinstance(item, StoredLine) and (values := self._about.values(item))
        ]
        known = set(self._names)
        new = [name for name in dict.fromkeys(name for _, values in lines for name in values) if name not in known]
        if new:
            self._add_columns(new)
        rows = [
            (line.attempt, line.rank, line.step, line.at, *(values.get(name) for name in self._names))
            for line, values in lines
        ]
        self._file.append(_encoded(rows))
        self._rows += len(rows)
        self.written += len(rows)
        return {"rows": self._rows}

    def finish(self, state: str, ended_at: float) -> Position:
        self._file.close()
        return {"rows": self._rows}

    def _end_of_row(self, wanted: int) -> int | None:
        """The end of the row ``wanted`` in bytes; None if there are fewer rows. Reads the names of the columns. Rows
        are numbers, so only the first line can contain a quoted line break. Raises ExportError."""
        with self._file.path.open("rb") as file:
            head = _head(file)
            if head is None:
                raise ExportError(f"{self._file.path} is not the file that was written there; move it away")
            self._names = head[len(KEYS) :]
            left = wanted
            while piece := file.read(_PIECE_BYTES):
                count = piece.count(b"\n")
                if count >= left:
                    place = -1
                    for _ in range(left):
                        place = piece.index(b"\n", place + 1)
                    return file.tell() - len(piece) + place + 1
                left -= count
        return None

    def _add_columns(self, new: Sequence[str]) -> None:
        names = [*self._names, *new]
        if len(names) > MAX_COLUMNS:
            raise ExportError(f"more than {MAX_COLUMNS} metrics do not fit in a table; use jsonl, or name those wanted")
        path = self._file.path
        beside = path.with_name(f".{path.name}.new")
        try:
            with path.open("rb") as old, beside.open("wb") as fresh:
                _head(old)
                fresh.write(_encoded([(*KEYS, *names)]))
                empty = b"," * len(new) + b"\n"
                for row in old:
                    fresh.write(row.rstrip(b"\r\n") + empty)
                fresh.flush()
                os.fsync(fresh.fileno())
                os.fchmod(fresh.fileno(), path.stat().st_mode & 0o777)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        self._names = names
        self._file.open()


def _head(file: io.BufferedReader) -> list[str] | None:
    """The first row; the file is then behind it. None without a complete header of an export."""
    text = ""
    while line := file.readline():
        text += line.decode("utf-8", "replace")
        if text.count('"') % 2 == 0:
            break
    rows = list(csv.reader(io.StringIO(text, newline="")))
    is_ours = len(rows) == 1 and tuple(rows[0][: len(KEYS)]) == KEYS and text.endswith("\n")
    return rows[0] if is_ours else None


def _unicode(name: str) -> str:
    """A name as it is read back from the file."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _encoded(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
