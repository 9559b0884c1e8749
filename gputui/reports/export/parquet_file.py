"""A run's metric lines as a Parquet file, a line a row, which is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from gputui.reports.export.csv_sink import KEYS
from gputui.reports.export.sink import ExportError
from gputui.reports.export.subject import Subject

_PARQUET_ROWS = 50_000


def write_parquet(subject: Subject, target: Path) -> int:
    """The columns of a CSV export, numbers as doubles, the time as a UTC timestamp. Returns the rows. Raises
    ExportError or OSError."""
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

    def fill(file: IO[bytes]) -> int:
        count = 0
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for columns in _batches(subject):
                count += len(columns["attempt"])
                writer.write_table(pyarrow.table(columns, schema=schema))
        return count

    return whole(target, fill)


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


def whole(target: Path, fill: Callable[[IO[bytes]], int]) -> int:
    """Write beside the target first and put it in place when everything is on the disk."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            count = fill(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return count
