"""The documents (texts and conversations) in text, JSON lines and Parquet files, read slice by slice."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import TrainerError, one_line
from trainer.tokenizer import Messages

# Bytes of a slice, the unit of work of one process. A larger text file becomes one document per slice.
SLICE_BYTES = 1 << 24

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"
_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|test)([^a-z]|$)")

# The place of a document as ``file:line`` or ``file, row``; called for errors only, because it counts lines.
Where = Callable[[], str]


@dataclass(frozen=True)
class Slice:
    """The lines of a file that begin at bytes start .. stop - 1, or those row groups of a Parquet file."""

    path: Path
    start: int
    stop: int
    held_out: bool | None  # None: the content of each document decides


def files_below(folder: Path) -> Iterator[str]:
    """The paths of all files below a folder, relative to it, without names that begin with a dot."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = f"{parent}/".removeprefix(f"{folder}/")
        yield from (inside + name for name in names if not name.startswith("."))


def list_slices(inputs: Sequence[Path]) -> list[Slice]:
    """Cut the files, and files in folders, into slices of about SLICE_BYTES.

    If the name of any file says that it is held out, names decide for all. Raises TrainerError for an input that does
    not exist and for a damaged Parquet file, and OSError.
    """
    files: dict[Path, bool] = {}
    for place in inputs:
        if not place.exists():
            raise TrainerError(f"{place} does not exist; give text, JSON lines or Parquet files, or folders of them")
        if place.is_dir():
            root = place
            names = sorted(map(Path, files_below(place)))
        else:
            root = place.parent
            names = [Path(place.name)]
        marked_files = ((root / name, _HELD_OUT.search(str(name).lower()) is not None) for name in names)
        files |= {path: held_out for path, held_out in marked_files if path.is_file()}
    by_name = any(files.values())
    slices: list[Slice] = []
    for path, held_out in files.items():
        if path.suffix.lower() == _PARQUET:
            ranges = _group_ranges(path)
        else:
            size = path.stat().st_size
            ranges = [(start, min(start + SLICE_BYTES, size)) for start in range(0, size, SLICE_BYTES)]
        by_file = held_out if by_name else None
        slices += [Slice(path, start, stop, by_file) for start, stop in ranges]
    if not slices:
        raise TrainerError(f"no documents in {', '.join(map(str, inputs))}")
    return slices


def _group_ranges(path: Path) -> list[tuple[int, int]]:
    """Cut a Parquet file into ranges of row groups."""
    ranges = []
    first = 0
    total_bytes = 0
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            total_bytes += file.metadata.row_group(group).total_byte_size
            if total_bytes >= SLICE_BYTES or group == file.num_row_groups - 1:
                ranges.append((first, group + 1))
                first = group + 1
                total_bytes = 0
    return ranges


def read_documents(part: Slice, column: str) -> Iterator[tuple[str | Messages, Where]]:
    """The documents of a slice. A row is a conversation (``messages``) or a text (in `column`).

    Raises TrainerError naming file and line of the first row that is neither, and OSError.
    """
    suffix = part.path.suffix.lower()
    if suffix == _PARQUET or suffix in _JSON_LINES:
        rows = _parquet_rows(part, column) if suffix == _PARQUET else _json_rows(part)
        yield from ((_content(row, column, where), where) for row, where in rows)
        return
    try:
        text = b"".join(content for _, content in _lines(part)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TrainerError(f"{part.path}: this is not UTF-8 text: {error.reason}") from None
    if text.strip():
        yield text, lambda: str(part.path)


def _json_rows(part: Slice) -> Iterator[tuple[Any, Where]]:
    for offset, content in _lines(part):
        where = functools.partial(_line_number, part.path, offset)
        if content.strip():
            try:
                yield json.loads(content), where
            except ValueError as error:
                raise TrainerError(f"{where()}: this is not JSON: {error}") from None


def _lines(part: Slice) -> Iterator[tuple[int, bytes]]:
    """The byte offset and content of each line that begins in the slice."""
    with part.path.open("rb") as file:
        if part.start:
            file.seek(part.start - 1)
            file.readline()  # the rest of a line that begins before the slice
        while (offset := file.tell()) < part.stop and (content := file.readline()):
            yield offset, content


def _line_number(path: Path, offset: int) -> str:
    """The line at a byte offset as ``file:line``."""
    number = 1
    with path.open("rb") as file:
        while file.tell() < offset and file.readline():
            number += 1
    return f"{path}:{number}"


def _parquet_rows(part: Slice, column: str) -> Iterator[tuple[Any, Where]]:
    with open_parquet(part.path) as file:
        names = file.schema_arrow.names
        columns = [name for name in ("messages", column) if name in names]
        if not columns:
            raise TrainerError(f"{part.path} has no column messages or {column}, but {', '.join(names)}")
        number = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
        for group in range(part.start, part.stop):
            try:
                rows = file.read_row_group(group, columns=columns).to_pylist()
            except (OSError, ValueError) as error:
                raise TrainerError(f"{part.path}: row group {group} cannot be read: {one_line(error)}") from None
            for row in rows:
                number += 1
                yield row, functools.partial("{}, row {}".format, part.path, number)


def _content(row: Any, column: str, where: Where) -> str | Messages:
    """The conversation or text of a row. Raises TrainerError, with `where`, if it has neither."""
    fields = row if isinstance(row, dict) else {}
    messages = fields.get("messages")
    text = fields.get(column)
    if messages is None and isinstance(text, str):
        return text
    if messages is None:
        columns = ", ".join(map(str, fields)) or type(row).__name__
        raise TrainerError(f"{where()}: neither messages nor a text in {column}, but {columns}")
    try:
        turns = [{"role": message["role"], "content": message["content"]} for message in messages]
    except (TypeError, KeyError):
        turns = []
    if not turns or not all(isinstance(text, str) for message in turns for text in message.values()):
        raise TrainerError(f"{where()}: messages is not a list of messages with role and content in words")
    return turns


def open_parquet(path: Path) -> Any:
    """A pyarrow ParquetFile. Raises TrainerError for a damaged one."""
    try:
        import pyarrow
        from pyarrow import parquet

        return parquet.ParquetFile(path)
    except ImportError:
        raise TrainerError("Parquet files need pyarrow: pip install 'gputui[train]'") from None
    except (OSError, pyarrow.ArrowException) as error:
        problem = one_line(error)
        raise TrainerError(f"{path} is damaged or no Parquet file; remove it or fetch it again: {problem}") from None
