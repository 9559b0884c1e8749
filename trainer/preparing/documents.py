"""The documents in text, JSON lines and Parquet files: texts and conversations, found by slices of files."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import TrainerError
from trainer.tokenizer import Messages

# Bytes of an input that one process takes at a time; also how much of a large text is one document.
SLICE_BYTES = 1 << 24

_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"
_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|test)([^a-z]|$)")


@dataclass(frozen=True)
class Slice:
    """A part of an input: bytes from `start` to `stop`, or row groups of a Parquet file.

    Of lines, those that begin in it. `held_out` is what the file's name says, None if the content decides.
    """

    path: Path
    start: int
    stop: int
    held_out: bool | None

    @property
    def kind(self) -> str:
        suffix = self.path.suffix.lower()
        return "lines" if suffix in _LINES else "parquet" if suffix == _PARQUET else "text"


@dataclass(frozen=True)
class TextDocument:
    """A text or a conversation; `where` says where it was found, as ``file:line`` or ``file, row``."""

    content: str | Messages
    where: Callable[[], str]  # asked where something is wrong only: lines are not counted before


def files_of(inputs: Sequence[Path]) -> list[tuple[Path, bool]]:
    """All files of the inputs in the order of their names, and whether each is held out by its name.

    In folders what begins with a dot is left out. Raises TrainerError for an input that is not there.
    """
    found = []
    for place in inputs:
        if place.is_file():
            found.append((place, place.name))
        elif place.is_dir():
            below = sorted(path for path in place.rglob("*") if path.is_file())
            names = [path.relative_to(place) for path in below]
            kept = [not any(part.startswith(".") for part in name.parts) for name in names]
            found += [(path, str(name)) for path, name, keep in zip(below, names, kept, strict=True) if keep]
        else:
            raise TrainerError(f"{place} does not exist; give text, JSON lines or Parquet files, or folders of them")
    if not found:
        raise TrainerError(f"no files in {', '.join(map(str, inputs))}")
    return [(path, _HELD_OUT.search(name.lower()) is not None) for path, name in found]


def slices_of(path: Path, *, held_out: bool | None) -> list[Slice]:
    """A file in slices of about SLICE_BYTES. Raises TrainerError for a damaged Parquet file, OSError."""
    if path.suffix.lower() != _PARQUET:
        size = path.stat().st_size
        return [Slice(path, start, min(start + SLICE_BYTES, size), held_out) for start in range(0, size, SLICE_BYTES)]
    found, first, weight = [], 0, 0
    metadata = _parquet(path).metadata
    for group in range(metadata.num_row_groups):
        weight += metadata.row_group(group).total_byte_size
        if weight >= SLICE_BYTES or group == metadata.num_row_groups - 1:
            found.append(Slice(path, first, group + 1, held_out))
            first, weight = group + 1, 0
    return found


def documents_in(part: Slice, column: str) -> Iterator[TextDocument]:
    """The documents of a slice: a text file's text, or a row's conversation (``messages``) or text (`column`).

    Raises TrainerError naming file and line of the first row that is neither, and OSError.
    """
    if part.kind == "text":
        yield from _texts(part)
    elif part.kind == "lines":
        for offset, content in _lines(part):
            where = functools.partial(_line_at, part.path, offset)
            try:
                row = json.loads(content)
            except ValueError as error:
                raise TrainerError(f"{where()}: this is not JSON: {error}") from None
            yield TextDocument(_content(row, column, where), where)
    else:
        yield from _rows(part, column)


def _texts(part: Slice) -> Iterator[TextDocument]:
    """The lines that begin in the slice as one document."""
    content = b"".join(content for _, content in _lines(part))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TrainerError(f"{part.path}: this is not UTF-8 text: {error.reason}") from None
    if text.strip():
        yield TextDocument(text, lambda: str(part.path))


def _lines(part: Slice) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in the slice, with the bytes before them; of JSON lines those that are not empty."""
    with part.path.open("rb") as file:
        if part.start:
            file.seek(part.start - 1)
            file.readline()  # the rest of a line that begins before
        while (offset := file.tell()) < part.stop and (content := file.readline()):
            if part.kind == "text" or content.strip():
                yield offset, content


def _line_at(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        lines = 1
        while offset > 0 and (block := file.read(min(offset, 1 << 22))):
            lines += block.count(b"\n")
            offset -= len(block)
    return f"{path}:{lines}"


def _rows(part: Slice, column: str) -> Iterator[TextDocument]:
    file = _parquet(part.path)
    wanted = [name for name in ("messages", column) if name in file.schema_arrow.names]
    if not wanted:
        raise TrainerError(f"{part.path} has no column messages or {column}, but {', '.join(file.schema_arrow.names)}")
    number = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
    for group in range(part.start, part.stop):
        try:
            rows = file.read_row_group(group, columns=wanted[:1]).to_pylist()
        except (OSError, ValueError) as error:
            raise TrainerError(f"{part.path}: row group {group} cannot be read: {error}") from None
        for row in rows:
            number += 1
            where = functools.partial("{}, row {}".format, part.path, number)
            yield TextDocument(_content(row, column, where), where)


def _content(row: Any, column: str, where: Callable[[], str]) -> str | Messages:
    if not isinstance(row, dict):
        raise TrainerError(f"{where()}: a {type(row).__name__}, where an object with messages or {column} was expected")
    messages = row.get("messages")
    if messages is not None:
        problem = _problem(messages)
        if problem:
            raise TrainerError(f"{where()}: {problem}")
        return [{"role": one["role"], "content": one["content"]} for one in messages]
    text = row.get(column)
    if not isinstance(text, str):
        raise TrainerError(f"{where()}: neither messages nor a text in {column}; it has {', '.join(map(str, row))}")
    return text


def _problem(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        return "messages is not a list of messages"
    for number, one in enumerate(messages, 1):
        if not isinstance(one, Mapping) or not all(isinstance(one.get(key), str) for key in ("role", "content")):
            return f"message {number} has no role and content in words"
    return ""


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise TrainerError(f"Parquet files need pyarrow ({error}); pip install 'gputui[train]'") from None
    try:
        return parquet.ParquetFile(os.fspath(path))
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise TrainerError(f"{path} is no Parquet file: {' '.join(str(error).split())}") from None
