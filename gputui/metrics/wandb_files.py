"""Offline runs of W&B.

After a header of 7 bytes, a file has LevelDB's log format (core/pkg/leveldb in W&B's sources): blocks of 32 KiB with
chunks of CRC-32 (4 bytes), length (2), kind (1) and data. A record consists of one or several chunks, and no chunk
crosses the end of a block. A record is a protocol buffer of type Record (wandb_internal.proto).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from gputui.metrics.protobuf import LENGTH, FieldBudget
from gputui.metrics.tracker_files import MAX_RECORD_BYTES, DamagedRecordError, Read, RecordFrame, as_line

_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Numbers of the fields: Record, HistoryRecord, HistoryItem.
_RECORD_HISTORY = 2
_HISTORY_ITEM = 1
_ITEM_KEY, _ITEM_NESTED_KEY, _ITEM_JSON = 1, 2, 16

# Longer than any number in JSON.
_NUMBER_BYTES = 64
# Entries that W&B adds to each record.
_STEP, _TIME, _OTHERS = "_step", "_timestamp", frozenset({"_runtime"})


# --- records ----------------------------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    """A chunk of a record; ``begin`` and ``end`` are offsets in the data and include the header."""

    begin: int
    end: int
    kind: int
    content: bytes
    is_whole: bool


def wandb_frames(data: bytes, offset: int) -> Iterator[RecordFrame]:
    """The complete records at the beginning of ``data``, which begins ``offset`` bytes from the start of the file. A
    record with a wrong checksum or missing chunks has no content. Raises DamagedRecordError."""
    start = 0
    if offset == 0:
        if len(data) < _FILE_HEADER_BYTES:
            return
        if data[:4] != b":W&B":
            raise DamagedRecordError("no file of W&B")
        start = _FILE_HEADER_BYTES
    parts: list[bytes] = []
    is_whole = True
    for chunk in _chunks(data, offset, start):
        begins = chunk.kind in (_FULL, _FIRST)
        if begins and parts:
            # The record before lacks its last chunk.
            yield RecordFrame(start, chunk.begin, None)
            start, parts, is_whole = chunk.begin, [], True
        is_whole = is_whole and chunk.is_whole and (begins or bool(parts))
        parts.append(chunk.content)
        if chunk.kind in (_FULL, _LAST):
            yield RecordFrame(start, chunk.end, b"".join(parts) if is_whole else None)
            start, parts, is_whole = chunk.end, [], True


def wandb_end(read: Read, offset: int) -> int | None:
    """The end of the record at ``offset``, None if it is incomplete. Raises DamagedRecordError."""
    position = offset or _FILE_HEADER_BYTES
    while position - offset <= MAX_RECORD_BYTES:
        position = _chunk_begin(position)
        header = read(_CHUNK_HEADER.size, position)
        if len(header) < _CHUNK_HEADER.size:
            return None
        _, length, kind = _chunk_header(header, position)
        position += _CHUNK_HEADER.size + length
        if kind in (_FULL, _LAST):
            return position
    raise DamagedRecordError("no record of W&B")


def _chunks(data: bytes, offset: int, position: int) -> Iterator[_Chunk]:
    """The complete chunks of ``data`` from a position on. Raises DamagedRecordError."""
    while True:
        begin = _chunk_begin(offset + position) - offset
        content_begin = begin + _CHUNK_HEADER.size
        if content_begin > len(data):
            return
        checksum, length, kind = _chunk_header(data[begin:content_begin], offset + begin)
        position = content_begin + length
        if position > len(data):
            return
        content = data[content_begin:position]
        yield _Chunk(begin, position, kind, content, checksum == zlib.crc32(content, zlib.crc32(bytes([kind]))))


def _chunk_begin(offset: int) -> int:
    """The start of the next chunk: ``offset``, or the next block if no header fits into this one."""
    remaining = _BLOCK_BYTES - offset % _BLOCK_BYTES
    return offset + remaining if remaining < _CHUNK_HEADER.size else offset


def _chunk_header(header: bytes, offset: int) -> tuple[int, int, int]:
    """The checksum, length and kind of the chunk at ``offset`` in the file. Raises DamagedRecordError."""
    checksum, length, kind = _CHUNK_HEADER.unpack(header)
    remaining = _BLOCK_BYTES - offset % _BLOCK_BYTES
    if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or length > remaining - _CHUNK_HEADER.size:
        raise DamagedRecordError("no record of W&B")
    return checksum, length, kind


# --- scalars ----------------------------------------------------------------------------------------------------------


def wandb_scalars(record: bytes) -> dict[str, Any] | None:
    """The numbers of a record of history as a metrics line, with step and time; None for other records. Raises
    DamagedRecordError."""
    values: dict[str, Any] = {}
    budget = FieldBudget()
    for number, wire, value in budget.fields(record):
        if number != _RECORD_HISTORY or wire != LENGTH:
            continue
        for inner, kind, content in budget.fields(value):
            if inner == _HISTORY_ITEM and kind == LENGTH:
                name, item = _history_item(content, budget)
                if name and isinstance(item, int | float) and not isinstance(item, bool):
                    values[name] = item
    if _STEP not in values:
        return None
    step, time = values.pop(_STEP), values.pop(_TIME, None)
    return as_line({name: value for name, value in values.items() if name not in _OTHERS}, step, time)


def _history_item(content: bytes, budget: FieldBudget) -> tuple[str, Any]:
    """A name, with dots for nested keys, and its value; None if that is no JSON or longer than a number."""
    names: list[str] = []
    text = b""
    for number, wire, value in budget.fields(content):
        if number in (_ITEM_KEY, _ITEM_NESTED_KEY) and wire == LENGTH:
            names.append(value.decode("utf-8", "replace"))
        elif number == _ITEM_JSON and wire == LENGTH:
            text = value
    if len(text) > _NUMBER_BYTES:
        return "", None
    try:
        return ".".join(names), json.loads(text)
    except (ValueError, RecursionError):
        return "", None
