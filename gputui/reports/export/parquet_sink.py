"""Parquet: a run's metric lines as one file, a row per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from gputui.reports.export.csv_sink import KEYS
from gputui.reports.export.sink import ExportError
from gputui.reports.export.subject import Subject
from gputui.reports.export.whole_file import WholeFileSink

_PARQUET_ROWS = 50_000


class ParquetSink(WholeFileSink):
    """A Parquet file with a row per line and a column per metric."""

    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        """The columns of a CSV export, numbers as doubles, the time as a UTC timestamp."""
        import pyarrow
        import pyarrow.parquet

        clash = set(KEYS) & set(subject.metrics)
        if clash:
            raise ExportError(f"a metric is called {clash.pop()}, as a column of its own is; export to jsonl")
        schema = pyarrow.schema(
            [
                ("attempt", pyarrow.int32()), ("rank", pyarrow.int32()), ("step", pyarrow.int64()),
                ("time", pyarrow.timestamp("us", tz="UTC")), *((name, pyarrow.float64()) for name in subject.metrics),
            ]
        )  # fmt: skip
        count = 0
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for columns in _batches(subject):
                count += len(columns["attempt"])
                writer.write_table(pyarrow.table(columns, schema=schema))
        return count


def _batches(subject: Subject) -> Iterator[dict[str, list[Any]]]:
    columns: dict[str, list[Any]] = {name: [] for name in (*KEYS, *subject.metrics)}
    for line in subject.lines():
        numbers = line.numbers()
        if not any(name in numbers for name in subject.metrics):
            continue
        columns["attempt"].append(line.attempt)
        columns["rank"].append(line.rank)
        columns["step"].append(line.step)
        columns["time"].append(None if line.at is None else round(line.at * 1e6))
        for name in subject.metrics:
            columns[name].append(numbers.get(name))
        if len(columns["attempt"]) >= _PARQUET_ROWS:
            yield columns
            columns = {name: [] for name in columns}
    if columns["attempt"]:
        yield columns
