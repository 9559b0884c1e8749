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


@dataclass(frozen=True)
class Slice:
    """The lines of a file that begin at bytes start .. stop - 1, or those row groups of a Parquet file.

    `held_out` says whether its documents are held out; None: their content decides.
    """

    path: Path
    start: int
    stop: int
    held_out: bool | None


@dataclass(frozen=True)
class TextDocument:
    """A text or a conversation; `where` returns its place as ``file:line`` or ``file, row``."""

    content: str | Messages
    where: Callable[[], str]  # called for error messages only, because it counts lines


def files_below(folder: Path) -> Iterator[str]:
    """The paths of all files below a folder, relative to it, without names that begin with a dot."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = f"{parent}/".removeprefix(f"{folder}/")
        yield from (inside + name for name in names if not name.startswith("."))


def list_files(inputs: Sequence[Path]) -> list[tuple[Path, bool]]:
    """All files of the inputs, sorted within each folder, and whether each one's name says that it is held out.

    Names in folders that begin with a dot are skipped. Raises TrainerError if an input does not exist, or has no files.
    """
    files: list[tuple[Path, Path]] = []  # and the names relative to the input
    for path in inputs:
        if path.is_file():
            files.append((path, Path(path.name)))
        elif path.is_dir():
            inside = ((path / name, Path(name)) for name in files_below(path))
            files += sorted((file, name) for file, name in inside if file.is_file())
        else:
            raise TrainerError(f"{path} does not exist; give text, JSON lines or Parquet files, or folders of them")
    if not files:
        raise TrainerError(f"no files in {', '.join(map(str, inputs))}")
    return [(file, _HELD_OUT.search(str(name).lower()) is not None) for file, name in files]


def cut_into_slices(path: Path, *, held_out: bool | None) -> list[Slice]:
    """Cut a file into slices of about SLICE_BYTES. Raises TrainerError for a damaged Parquet file, and OSError."""
    if path.suffix.lower() != _PARQUET:
        size = path.stat().st_size
        return [Slice(path, start, min(start + SLICE_BYTES, size), held_out) for start in range(0, size, SLICE_BYTES)]
    slices, first, total_bytes = [], 0, 0
    metadata = open_parquet(path).metadata
    for group in range(metadata.num_row_groups):
        total_bytes += metadata.row_group(group).total_byte_size
        if total_bytes >= SLICE_BYTES or group == metadata.num_row_groups - 1:
            slices.append(Slice(path, first, group + 1, held_out))
            first, total_bytes = group + 1, 0
    return slices


def read_documents(part: Slice, column: str) -> Iterator[TextDocument]:
    """The documents of a slice. A row is a conversation (``messages``) or a text (in `column`).

    Raises TrainerError naming file and line of the first row that is neither, and OSError.
    """
    if part.path.suffix.lower() == _PARQUET:
        yield from _read_parquet(part, column)
    elif part.path.suffix.lower() in _JSON_LINES:
        yield from _read_json_lines(part, column)
    else:
        yield from _read_text(part)


def _read_json_lines(part: Slice, column: str) -> Iterator[TextDocument]:
    for offset, content in _lines(part):
        if not content.strip():
            continue
        where = functools.partial(_line_number, part.path, offset)
        try:
            row = json.loads(content)
        except ValueError as error:
            raise TrainerError(f"{where()}: this is not JSON: {error}") from None
        yield TextDocument(_content(row, column, where), where)


def _read_text(part: Slice) -> Iterator[TextDocument]:
    """The lines of the slice as one document; none if they are blank."""
    content = b"".join(content for _, content in _lines(part))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TrainerError(f"{part.path}: this is not UTF-8 text: {error.reason}") from None
    if text.strip():
        yield TextDocument(text, lambda: str(part.path))


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
    with path.open("rb") as file:
        lines = 1
        while offset > 0 and (block := file.read(min(offset, 1 << 22))):
            lines += block.count(b"\n")
            offset -= len(block)
    return f"{path}:{lines}"


def _read_parquet(part: Slice, column: str) -> Iterator[TextDocument]:
    file = open_parquet(part.path)
    columns = [name for name in ("messages", column) if name in file.schema_arrow.names]
    if not columns:
        raise TrainerError(f"{part.path} has no column messages or {column}, but {', '.join(file.schema_arrow.names)}")
    number = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
    for group in range(part.start, part.stop):
        try:
            rows = file.read_row_group(group, columns=columns).to_pylist()
        except (OSError, ValueError) as error:
            raise TrainerError(f"{part.path}: row group {group} cannot be read: {error}") from None
        for row in rows:
            number += 1
            where = functools.partial("{}, row {}".format, part.path, number)
            yield TextDocument(_content(row, column, where), where)


def _content(row: Any, column: str, where: Callable[[], str]) -> str | Messages:
    """The conversation or text of a row. Raises TrainerError, with `where`, if it has neither."""
    if not isinstance(row, dict):
        raise TrainerError(f"{where()}: a {type(row).__name__}, where an object with messages or {column} was expected")
    messages = row.get("messages")
    if messages is None:
        text = row.get(column)
        if not isinstance(text, str):
            raise TrainerError(f"{where()}: neither messages nor a text in {column}; it has {', '.join(map(str, row))}")
        return text
    if not isinstance(messages, list) or not messages:
        raise TrainerError(f"{where()}: messages is not a list of messages")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise TrainerError(f"{where()}: message {number} has no role and content in words")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def open_parquet(path: Path) -> Any:
    """A pyarrow ParquetFile. Raises TrainerError for a damaged one."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TrainerError("Parquet files need pyarrow: pip install 'gputui[train]'") from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        problem = one_line(error)
        raise TrainerError(f"{path} is damaged or no Parquet file; remove it or fetch it again: {problem}") from None
