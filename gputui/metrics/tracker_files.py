"""Files of other trackers, record by record: TensorBoard's event files and W&B's offline runs. Pure, without their
libraries: of both formats only what holds scalars is understood, everything else is passed over.

Both are sequences of records in a frame, of protocol buffers each:

- an event file (tensorflow/core/lib/io/record_writer.h): length (8 bytes), its masked CRC-32C (4), the record, and
  the record's CRC (4);
- a W&B file (wandb/sdk/internal/datastore.py): after 7 bytes of its own the log format of LevelDB, blocks of 32 KiB
  with chunks of CRC (4), length (2), kind (1) and data, of which one or several make a record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MAX_RECORD_BYTES = 64 << 20
"""A length beyond it is no length: the file is damaged there."""
LARGEST_READ_BYTES = 1 << 20
"""Larger records are passed over unread: pictures, sounds and tables."""

_EVENT_HEADER = struct.Struct("<QI")
_EVENT_FOOTER_BYTES = 4
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
_WANDB_HEADER_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Python takes 0.1 µs a byte for it; what is larger holds no scalar alone.
_CHECKED_BYTES = 4096
# Of one record; each takes half a microsecond.
_MOST_FIELDS = 10_000
# As JSON, and longer than any number.
_NUMBER_BYTES = 64

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


Read = Callable[[int, int], bytes]
"""So many bytes of a file from a place on, fewer at its end."""


class DamagedRecordError(ValueError):
    """What follows is no record, or a record is none that can be understood; the text says which."""


class RecordFrame(NamedTuple):
    """A record in a file: it begins ``start`` bytes behind the place that was looked at, the next one at ``end``;
    ``content`` is the record itself, None where its checksum is wrong."""

    start: int
    end: int
    content: bytes | None


def event_frames(data: bytes, _offset: int) -> Iterator[RecordFrame]:
    """The whole records at the beginning of ``data``. Raises DamagedRecordError."""
    position = 0
    while len(data) - position >= _EVENT_HEADER.size:
        length = _event_length(data[position : position + _EVENT_HEADER.size])
        begin = position + _EVENT_HEADER.size
        end = begin + length + _EVENT_FOOTER_BYTES
        if end > len(data):
            return
        content = data[begin : begin + length]
        is_whole = length > _CHECKED_BYTES or masked_crc(content).to_bytes(4, "little") == data[begin + length : end]
        yield RecordFrame(position, end, content if is_whole else None)
        position = end


def event_end(read: Read, offset: int) -> int | None:
    """Where the record at ``offset`` ends, None where its length is not there yet. Raises DamagedRecordError."""
    header = read(_EVENT_HEADER.size, offset)
    if len(header) < _EVENT_HEADER.size:
        return None
    return offset + _EVENT_HEADER.size + _event_length(header) + _EVENT_FOOTER_BYTES


def _event_length(header: bytes) -> int:
    length, check = _EVENT_HEADER.unpack(header)
    if length > MAX_RECORD_BYTES or masked_crc(header[:8]) != check:
        raise DamagedRecordError("no record of an event file")
    return int(length)


def wandb_frames(data: bytes, offset: int) -> Iterator[RecordFrame]:
    """The whole records at the beginning of ``data``, which lies ``offset`` bytes from the file's start. Raises
    DamagedRecordError."""
    position = 0
    if offset == 0:
        if len(data) < _WANDB_HEADER_BYTES:
            return
        if not data.startswith(b":W&B"):
            raise DamagedRecordError("no file of W&B")
        position = _WANDB_HEADER_BYTES
    start = position
    parts: list[bytes] = []
    while True:
        left = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
        if left < _CHUNK_HEADER.size:
            position += left  # the rest of a block that no chunk fits into
            continue
        if position + _CHUNK_HEADER.size > len(data):
            return
        length, kind = _chunk(data[position : position + _CHUNK_HEADER.size], left)
        end = position + _CHUNK_HEADER.size + length
        if end > len(data):
            return
        chunk = data[position + _CHUNK_HEADER.size : end]
        parts = [chunk] if kind in (_FULL, _FIRST) else [*parts, chunk]
        position = end
        if kind in (_FULL, _LAST):
            yield RecordFrame(start, end, b"".join(parts))
            start, parts = end, []


def wandb_end(read: Read, offset: int) -> int | None:
    """Where the record at ``offset`` ends, None where its chunks are not all there yet. Raises DamagedRecordError."""
    position = offset or _WANDB_HEADER_BYTES
    while position - offset <= MAX_RECORD_BYTES:
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _CHUNK_HEADER.size:
            position += left
            continue
        header = read(_CHUNK_HEADER.size, position)
        if len(header) < _CHUNK_HEADER.size:
            return None
        length, kind = _chunk(header, left)
        position += _CHUNK_HEADER.size + length
        if kind in (_FULL, _LAST):
            return position
    raise DamagedRecordError("no record of W&B")


def _chunk(header: bytes, left: int) -> tuple[int, int]:
    """Length and kind of a chunk in a block that has ``left`` bytes more."""
    _, length, kind = _CHUNK_HEADER.unpack(header)
    if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or length > left - _CHUNK_HEADER.size:
        raise DamagedRecordError("no record of W&B")
    return length, kind


def event_scalars(record: bytes) -> dict[str, Any] | None:
    """The scalars of an event as the values of a metrics line, with step and time; None where it has none. Raises
    DamagedRecordError."""
    values: dict[str, Any] = {}
    step, time = 0, None
    left = _Left()
    for number, wire, value in left.fields(record):
        if number == 1 and wire == _FIXED64:
            (time,) = struct.unpack("<d", value)
        elif number == 2 and wire == _VARINT:
            step = value
        elif number == 5 and wire == _LENGTH:
            for inner, kind, summary in left.fields(value):
                if inner == 1 and kind == _LENGTH:
                    tag, scalar = _summary_value(summary, left)
                    if scalar is not None:
                        values[tag] = scalar
    return {**values, "step": step, "time": time} if values else None


def _summary_value(content: bytes, left: _Left) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, wire, value in left.fields(content):
        if number == 1 and wire == _LENGTH:
            tag = value.decode("utf-8", "replace")
        elif number == 2 and wire == _FIXED32:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and wire == _LENGTH:
            scalar = _tensor_scalar(value, left)
    return tag, scalar


def _tensor_scalar(content: bytes, left: _Left) -> float | None:
    """The one number of a tensor without dimensions; None for any other."""
    kinds = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
    kind, raw, has_shape = 0, b"", False
    for number, wire, value in left.fields(content):
        if number == 1 and wire == _VARINT:
            kind = value
        elif number == 2 and wire == _LENGTH:
            has_shape = any(inner == 2 for inner, _, _ in left.fields(value))
        elif number in (4, 5, 6) and wire in (_LENGTH, _FIXED32, _FIXED64):
            raw = value
    shape = kinds.get(kind)
    if has_shape or shape is None or len(raw) != struct.calcsize(shape):
        return None
    return float(struct.unpack(shape, raw)[0])


def wandb_scalars(record: bytes) -> dict[str, Any] | None:
    """The numbers of a record of history as the values of a metrics line, with step and time; None where it is none.
    Raises DamagedRecordError."""
    values: dict[str, Any] = {}
    left = _Left()
    for number, wire, value in left.fields(record):
        if number != 2 or wire != _LENGTH:
            continue
        for inner, kind, content in left.fields(value):
            if inner == 1 and kind == _LENGTH:
                name, item = _history_item(content, left)
                if name and isinstance(item, int | float) and not isinstance(item, bool):
                    values[name] = item
    if "_step" not in values:
        return None
    step, time = values.pop("_step"), values.pop("_timestamp", None)
    own = {name: value for name, value in values.items() if name not in ("_runtime", "step", "time")}
    return {**own, "step": step, "time": time} if own else None


def _history_item(content: bytes, left: _Left) -> tuple[str, Any]:
    """A name and its value; None for anything too long to be a number."""
    names: list[str] = []
    text = b""
    for number, wire, value in left.fields(content):
        if number in (1, 2) and wire == _LENGTH:
            names.append(value.decode("utf-8", "replace"))
        elif number == 16 and wire == _LENGTH:
            text = value
    if len(text) > _NUMBER_BYTES:
        return "", None
    try:
        return ".".join(names), json.loads(text)
    except (ValueError, RecursionError):
        return "", None


class _Left:
    """How many fields of a record may still be looked at: one made of millions would hold up all who wait."""

    def __init__(self) -> None:
        self.count = _MOST_FIELDS

    def fields(self, content: bytes) -> Iterator[tuple[int, int, Any]]:
        """Those of one message, as `_fields`. Raises DamagedRecordError."""
        for field in _fields(content):
            self.count -= 1
            if self.count < 0:
                raise DamagedRecordError(f"more than {_MOST_FIELDS} fields")
            yield field


def _fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, value) of each field of a protocol buffer. Raises DamagedRecordError."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(content, position)
            yield number, wire, value
            continue
        if wire == _LENGTH:
            length, position = _varint(content, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise DamagedRecordError("not a protocol buffer")
        if position + length > len(content):
            raise DamagedRecordError("a protocol buffer that is cut off")
        yield number, wire, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise DamagedRecordError("a protocol buffer that is cut off")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedRecordError("not a protocol buffer")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


def masked_crc(content: bytes) -> int:
    """The CRC-32C of a few bytes, masked as event files have it."""
    value = 0xFFFFFFFF
    for byte in content:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
