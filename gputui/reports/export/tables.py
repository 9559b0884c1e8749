"""A run's metric lines as one file: CSV, JSON lines or Parquet, a line a row. A file is there whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from gputui.reports.export.subject import ExportError, Subject, require

_PARQUET_ROWS = 50_000
_KEYS = ("attempt", "rank", "step", "time")


def write_csv(subject: Subject, target: Path) -> int:
    """Columns attempt, rank, step, time (unix seconds) and one per metric; empty is unknown. Returns the rows."""

    def fill(file: IO[bytes]) -> int:
        import io

        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        writer = csv.writer(text)
        writer.writerow([*_KEYS, *subject.metrics])
        count = 0
        for line in subject.lines():
            numbers = line.numbers()
            values = [numbers.get(name) for name in subject.metrics]
            if any(value is not None for value in values):
                writer.writerow([line.attempt, line.rank, line.step, line.at, *values])
                count += 1
        text.detach()
        return count

    return _whole(target, fill)


def write_jsonl(subject: Subject, target: Path) -> int:
    """Each line as it was written, events too, with run and attempt. Returns the lines."""

    def fill(file: IO[bytes]) -> int:
        count = 0
        wanted = {*subject.metrics, "step", "time", "rank", "event"}
        for line in subject.lines():
            kept = {name: value for name, value in line.data.items() if name in wanted or name not in line.numbers()}
            file.write(orjson.dumps({"run": subject.run.run_id, "attempt": line.attempt, **kept}) + b"\n")
            count += 1
        return count

    return _whole(target, fill)


def write_parquet(subject: Subject, target: Path) -> int:
    """The columns of `write_csv`, numbers as doubles, the time as a UTC timestamp. Raises ExportError."""
    require("pyarrow", "train")
    import pyarrow
    import pyarrow.parquet

    clash = set(_KEYS) & set(subject.metrics)
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

    return _whole(target, fill)


def _batches(subject: Subject) -> Iterator[dict[str, list[Any]]]:
    columns: dict[str, list[Any]] = {name: [] for name in (*_KEYS, *subject.metrics)}
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


def _whole(target: Path, fill: Callable[[IO[bytes]], int]) -> int:
    """Write beside the target first and put it in place when everything is on the disk."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            count = fill(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        raise ExportError(
            f"cannot write {target}: {error.strerror or error}; choose another place with --out"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return count
