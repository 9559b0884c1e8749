"""A row per metrics line, a column per metric: CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from gputui.core.files import replaced
from gputui.reports.export.files import LineFile, WholeFileSink, refuse_full_file
from gputui.reports.export.sink import ExportError, Position, Sink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import valid_unicode
from gputui.store.metrics.exported import Item
from gputui.store.metrics.stored_lines import StoredLine

KEYS = ("attempt", "rank", "step", "time")
MAX_COLUMNS = 5000
_PARQUET_ROWS = 50_000


class CsvSink(Sink):
    """A CSV file. For a new metric it is rewritten with another column and replaced.

    Exactly once: the position is the number of rows, and rows behind it are removed.
    """

    def __init__(self, subject: Subject, target: str) -> None:
        super().__init__(subject, target)
        self._file = LineFile(Path(target))
        self._names: list[str] = []
        self._rows = 0

    def refuse_taken(self) -> None:
        refuse_full_file(self._file.path)

    def begin(self, position: Position) -> bool:
        rows = int(position.get("rows", 0))
        if rows and self._continue(rows):
            return False
        self._file.open()
        self._file.cut(0)
        self._names = list(dict.fromkeys(map(valid_unicode, self._subject.metrics())))
        self._rows = 0
        self._file.append(_encode([(*KEYS, *self._names)]))
        return True

    def _continue(self, rows: int) -> bool:
        """Cut the file behind the rows written so far. Returns whether it has them all."""
        path = self._file.path
        if not path.exists() or not path.stat().st_size:
            return False
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            head = next(csv.reader(file), [])
        if tuple(head[: len(KEYS)]) != KEYS:
            raise ExportError(f"{path} is not the file that was written there; move it away")
        if self._rewrite(head[len(KEYS) :], rows) != rows:
            return False
        self._rows = rows
        return True

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        lines: list[tuple[StoredLine, dict[str, float]]] = []
        for item in items:
            if isinstance(item, StoredLine) and (values := self._subject.values(item)):
                lines.append((item, {valid_unicode(name): value for name, value in values.items()}))
        names = list(dict.fromkeys([*self._names, *(name for _, values in lines for name in values)]))
        if len(names) > len(self._names):
            self._file.append(b"")  # raises if somebody put another file in its place
            self._rewrite(names, self._rows)
        rows = [(line.attempt, line.rank, line.step, line.at, *map(values.get, names)) for line, values in lines]
        self._file.append(_encode(rows))
        self._rows += len(rows)
        self.written += len(rows)

    def position(self) -> Position:
        return {"rows": self._rows}

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, names: list[str], most: int) -> int:
        """Replace the file by one with these columns and its first rows. Returns their number."""
        if len(names) > MAX_COLUMNS:
            raise ExportError(f"more than {MAX_COLUMNS} metrics do not fit in a table; use jsonl, or name those wanted")
        path = self._file.path
        count = 0
        with path.open(encoding="utf-8", newline="") as old, replaced(path) as fresh:
            os.fchmod(fresh.fileno(), path.stat().st_mode & 0o777)
            rows = csv.reader(old)
            write = csv.writer(codecs.getwriter("utf-8")(fresh), lineterminator="\n").writerow
            width = len(next(rows))
            new_width = len(KEYS) + len(names)
            write((*KEYS, *names))
            for row in islice(rows, most):
                if len(row) != width:  # cut off
                    break
                write([*row, *[""] * (new_width - width)])
                count += 1
        self._names = names
        self._file.open()
        return count


def _encode(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


class ParquetSink(WholeFileSink):
    """The columns of a CSV export, numbers as doubles, the time as a UTC timestamp."""

    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        import pyarrow
        import pyarrow.parquet

        metrics = subject.metrics()
        if clash := set(KEYS) & set(metrics):
            problem = f"a metric is called {clash.pop()}, as a column of its own is; export to jsonl"
            raise ExportError(problem)
        types = pyarrow.int32(), pyarrow.int32(), pyarrow.int64(), pyarrow.timestamp("us", tz="UTC")
        key_fields = zip(KEYS, types, strict=True)
        schema = pyarrow.schema([*key_fields, *((name, pyarrow.float64()) for name in metrics)])
        count = 0
        rows = _rows(subject, metrics)
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while piece := list(islice(rows, _PARQUET_ROWS)):
                columns = zip(*piece, strict=True)
                arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
                count += len(piece)
        return count


def _rows(subject: Subject, metrics: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for line in subject.lines():
        numbers = line.numbers()
        values = [numbers.get(name) for name in metrics]
        if any(value is not None for value in values):
            at = None if line.at is None else round(line.at * 1e6)
            yield line.attempt, line.rank, line.step, at, *values
