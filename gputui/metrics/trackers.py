"""The growing files of other trackers, read without their libraries: TensorBoard's event files and
W&B's offline runs. Only records with scalars matter.

An event file (tensorflow/core/lib/io/record_writer.h) frames each record as its length (8 bytes),
the masked CRC-32C of the length (4), the content, and the masked CRC-32C of the content (4). The
content is a protocol buffer of type Event (tensorflow/core/util/event.proto).

A file of W&B has, after a header of 7 bytes, LevelDB's log format (core/pkg/leveldb in W&B's
sources): blocks of 32 KiB with chunks of CRC-32 (4 bytes), length (2), kind (1) and data. A record
has one or several chunks, and no chunk crosses the end of a block. It is a protocol buffer of type
Record (wandb_internal.proto).
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch, SourceState
from gputui.metrics.contract import ParsedLine, Rejected, parse_values
from gputui.metrics.tailer import Boundary, FileReader, owner

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""

# Names that are no metrics in a metrics line (`contract.parse_values`).
_RESERVED = frozenset({"step", "time", "rank", "event", "phase"})

# Wire types of protocol buffers.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# Per record; each field takes half a microsecond.
MAX_FIELDS = 10_000


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


class RecordFrame(NamedTuple):
    """A record, with offsets from the start of the data. ``content`` is None if a checksum is wrong
    or a part is missing."""

    start: int
    end: int
    content: bytes | None


def _as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as a metrics line; None without any. Scalars with a reserved name, such as
    ``rank``, get an underscore."""
    if not values:
        return None
    named = {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
    return {**named, "step": step, "time": time}


# --- protocol buffers (protobuf.dev, "Encoding") --------------------------------------------------


class FieldBudget:
    """The number of fields of a record that may still be read: one with millions would take the
    reader's time."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def fields(self, message: bytes) -> Iterator[tuple[int, int, Any]]:
        """(number, wire type, value) of each field of a message. The value is an integer for
        VARINT, else bytes. Raises DamagedRecordError, also when the budget is spent."""
        position = 0
        while position < len(message):
            self._left -= 1
            if self._left < 0:
                raise DamagedRecordError(f"more than {MAX_FIELDS} fields")
            key, position = _varint(message, position)
            number, wire = key >> 3, key & 7
            if wire == VARINT:
                value, position = _varint(message, position)
                yield number, wire, value
                continue
            if wire == LENGTH:
                length, position = _varint(message, position)
            elif wire in (FIXED64, FIXED32):
                length = 8 if wire == FIXED64 else 4
            else:
                raise DamagedRecordError("not a protocol buffer")
            if position + length > len(message):
                raise DamagedRecordError("a protocol buffer that is cut off")
            yield number, wire, message[position : position + length]
            position += length

    def within(self, message: bytes, number: int) -> Iterator[bytes]:
        """The embedded messages of one number."""
        for found, wire, value in self.fields(message):
            if found == number and wire == LENGTH:
                yield value


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at ``position`` and the position behind it. Raises
    DamagedRecordError."""
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


# --- TensorBoard ----------------------------------------------------------------------------------

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
# Larger records are not checked: Python takes 0.1 µs per byte, and records of scalars are smaller.
_CHECKED_BYTES = 4096

# Numbers of the fields: Event, Summary, Summary.Value, TensorProto, TensorShapeProto.
_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_TENSOR_FLOATS, _TENSOR_DOUBLES, _TENSOR_INTS, _TENSOR_INT64S = 5, 6, 7, 10
_SHAPE_DIMENSION = 2

# Each DataType of numbers (tensorflow/core/framework/types.proto) → how one is packed.
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
_PACKED = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}


def event_frames(data: bytes, _offset: int) -> Iterator[RecordFrame]:
    """The complete records at the beginning of ``data``. Raises DamagedRecordError."""
    position = 0
    while len(data) - position >= _HEADER.size:
        begin = position + _HEADER.size
        length, check = _HEADER.unpack(data[position:begin])
        if length > MAX_RECORD_BYTES or masked_crc(data[position : position + 8]) != check:
            raise DamagedRecordError("no record of an event file")
        end = begin + length + _FOOTER_BYTES
        if end > len(data):
            return
        content = data[begin : begin + length]
        is_whole = length > _CHECKED_BYTES or (masked_crc(content).to_bytes(4, "little") == data[begin + length : end])
        yield RecordFrame(position, end, content if is_whole else None)
        position = end


def event_scalars(record: bytes) -> dict[str, Any] | None:
    """The scalars of an event as a metrics line, with step and time; None without any. Raises
    DamagedRecordError."""
    values: dict[str, Any] = {}
    step, time = 0, None
    budget = FieldBudget()
    for number, wire, value in budget.fields(record):
        if number == _EVENT_TIME and wire == FIXED64:
            (time,) = struct.unpack("<d", value)
        elif number == _EVENT_STEP and wire == VARINT:
            step = value
        elif number == _EVENT_SUMMARY and wire == LENGTH:
            for content in budget.within(value, _SUMMARY_VALUE):
                tag, scalar = _tagged_scalar(content, budget)
                if scalar is not None:
                    values[tag] = scalar
    return _as_line(values, step, time)


def _tagged_scalar(content: bytes, budget: FieldBudget) -> tuple[str, float | None]:
    """The tag of a Summary.Value and its number; None for images, texts and other values."""
    tag, scalar = "", None
    for number, wire, value in budget.fields(content):
        if number == _VALUE_TAG and wire == LENGTH:
            tag = value.decode("utf-8", "replace")
        elif number == _VALUE_SIMPLE and wire == FIXED32:
            (scalar,) = struct.unpack("<f", value)
        elif number == _VALUE_TENSOR and wire == LENGTH:
            scalar = _tensor_scalar(value, budget)
    return tag, scalar


def _tensor_scalar(content: bytes, budget: FieldBudget) -> float | None:
    """The number of a tensor without dimensions; None for any other tensor."""
    dtype, packed, integer = 0, b"", None
    for number, wire, value in budget.fields(content):
        if number == _TENSOR_DTYPE and wire == VARINT:
            dtype = value
        elif number == _TENSOR_SHAPE and wire == LENGTH:
            if any(True for _ in budget.within(value, _SHAPE_DIMENSION)):
                return None
        elif number in (_TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES) and wire != VARINT:
            packed = value
        elif number in (_TENSOR_INTS, _TENSOR_INT64S) and wire in (VARINT, LENGTH):
            integer = value if wire == VARINT else _varint(value, 0)[0]
    if integer is not None and dtype in (_INT32, _INT64):
        # A negative number is the varint of its 64 bits in two's complement.
        return float(integer - (1 << 64) if integer >= 1 << 63 else integer)
    form = _PACKED.get(dtype)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


def _crc_table() -> Iterator[int]:
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        yield value


_CRC_TABLE = tuple(_crc_table())


def masked_crc(content: bytes) -> int:
    """The CRC-32C of some bytes, masked as in event files."""
    value = 0xFFFFFFFF
    for byte in content:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# --- W&B ------------------------------------------------------------------------------------------

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


def wandb_frames(data: bytes, offset: int) -> Iterator[RecordFrame]:
    """The complete records at the beginning of ``data``, which begins ``offset`` bytes from the
    start of the file. A record with a wrong checksum or missing chunks has no content. Raises
    DamagedRecordError."""
    position = 0
    if offset == 0:
        if len(data) < _FILE_HEADER_BYTES:
            return
        if data[:4] != b":W&B":
            raise DamagedRecordError("no file of W&B")
        position = _FILE_HEADER_BYTES
    parts: list[bytes] = []
    start, is_whole = position, True
    while True:
        left = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
        begin = position + left if left < _CHUNK_HEADER.size else position
        left = _BLOCK_BYTES - (offset + begin) % _BLOCK_BYTES
        if begin + _CHUNK_HEADER.size > len(data):
            return
        check, length, kind = _CHUNK_HEADER.unpack_from(data, begin)
        if not _FULL <= kind <= _LAST or length > left - _CHUNK_HEADER.size:
            raise DamagedRecordError("no record of W&B")
        position = begin + _CHUNK_HEADER.size + length
        if position > len(data):
            return
        if kind in (_FULL, _FIRST) and parts:
            # The record before lacks its last chunk.
            yield RecordFrame(start, begin, None)
            start, parts, is_whole = begin, [], True
        content = data[begin + _CHUNK_HEADER.size : position]
        is_sound = check == zlib.crc32(content, zlib.crc32(bytes([kind])))
        is_whole = is_whole and is_sound and (kind in (_FULL, _FIRST) or bool(parts))
        parts.append(content)
        if kind in (_FULL, _LAST):
            yield RecordFrame(start, position, b"".join(parts) if is_whole else None)
            start, parts, is_whole = position, [], True


def wandb_scalars(record: bytes) -> dict[str, Any] | None:
    """The numbers of a record of history as a metrics line, with step and time; None for other
    records. Raises DamagedRecordError."""
    values: dict[str, Any] = {}
    budget = FieldBudget()
    for history in budget.within(record, _RECORD_HISTORY):
        for content in budget.within(history, _HISTORY_ITEM):
            name, item = _history_item(content, budget)
            if name and isinstance(item, int | float) and not isinstance(item, bool):
                values[name] = item
    if _STEP not in values:
        return None
    step, time = values.pop(_STEP), values.pop(_TIME, None)
    metrics = {name: value for name, value in values.items() if name not in _OTHERS}
    return _as_line(metrics, step, time)


def _history_item(content: bytes, budget: FieldBudget) -> tuple[str, Any]:
    """A name, with dots for nested keys, and its value; None if that is no JSON or longer than a
    number."""
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


# --- reading --------------------------------------------------------------------------------------

# Kind of a source → the glob of its files below the profile's folder, and functions that split data
# into records and parse a record.
TRACKERS = {
    "tensorboard": ("events.out.tfevents.*", event_frames, event_scalars),
    "wandb": ("offline-run-*/run-*.wandb", wandb_frames, wandb_scalars),
}


class RecordReader(FileReader):
    """A `SourceReader` of the newest file of a tracker below the folders that ``path`` (a glob)
    matches. The files are only appended to, and each start of a script creates a new one, which is
    read after the one before it to its end."""

    def __init__(self, source_id: int, path: str, kind: str, redactor: Redactor = BY_LOOK) -> None:
        name, self._frames, self._scalars = TRACKERS[kind]
        super().__init__(f"{path}/{name}")
        self._source_id = source_id
        self._redactor = redactor

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. ``ended`` is no matter: a record is complete or not."""
        status = self._file.status(at_once=ended) if boundaries else None
        if status is None:
            return None
        inode = status.st_ino if state.inode is None else state.inode
        state = replace(state, inode=inode)
        is_current = inode == status.st_ino
        self._file.keep_only(inode)
        descriptor = self._file.open_current(inode) if is_current else self._file.open_former(inode, 0, None)
        batch = None
        if descriptor is not None:
            batch = self._read_from(descriptor, state, boundaries, budget_bytes)
        if batch is not None or is_current:
            return batch
        following = Batch(state, 0, self._redactor, more=True)
        generation = state.generation + 1
        following.state = SourceState(status.st_ino, generation, first_generation=generation)
        return following

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state; with ``at_most`` always the start."""
        status = self._file.status(at_once=True)
        generation = state.generation + (state.inode is not None)
        if status is None:
            return SourceState(None, generation, first_generation=generation)
        generation = state.generation if state.inode == status.st_ino else generation
        offset = status.st_size if at_most is None else 0
        return SourceState(status.st_ino, generation, offset, first_generation=generation)

    def _read_from(
        self,
        descriptor: int,
        state: SourceState,
        boundaries: Sequence[Boundary],
        budget_bytes: int,
    ) -> Batch | None:
        attempt, _, segment_end = owner(boundaries, state.position)
        status, offset = os.fstat(descriptor), state.byte_offset
        size = status.st_size if segment_end is None else segment_end
        if attempt is None or offset >= size:
            return None
        batch = Batch(state, attempt, self._redactor, status.st_mtime)
        until = time.monotonic() + READ_SECONDS
        end: int | None = None
        try:
            # A record may be longer than a batch.
            for limit in (min(budget_bytes, BATCH_BYTES), 2 * MAX_RECORD_BYTES):
                data = os.pread(descriptor, min(limit, size - offset), offset)
                for number, frame in enumerate(self._frames(data, offset)):
                    if number >= BATCH_LINES or (number and time.monotonic() >= until):
                        break
                    self._take(batch, state.generation, offset, frame)
                    end = offset + frame.end
                if end is not None or offset + len(data) >= size:
                    break
        except DamagedRecordError as error:
            # The start of the next record is unknown, but data that is appended later may begin
            # with one.
            position = offset if end is None else end
            batch.reject(state.generation, position, b"", Rejected(str(error)))
            end = size
        if end is None:
            # A killed script left half a record, and the next attempt began behind it.
            end = segment_end
        if end is None:
            return None
        batch.bytes_read = end - offset
        batch.state = replace(state, byte_offset=end)
        batch.more = end < size or segment_end is not None
        return batch

    def _take(self, batch: Batch, generation: int, offset: int, frame: RecordFrame) -> None:
        parsed: ParsedLine | Rejected | None
        if frame.content is None:
            parsed = Rejected("its checksum is wrong, or a part of it is missing")
        else:
            try:
                values = self._scalars(frame.content)
                parsed = None if values is None else parse_values(values)
            except DamagedRecordError as error:
                # The frame is intact, so the next record can be read.
                parsed = Rejected(str(error))
        if isinstance(parsed, ParsedLine):
            batch.take(self._source_id, generation, offset + frame.start, parsed)
        elif parsed is not None:
            content = (frame.content or b"")[:200]
            batch.reject(generation, offset + frame.start, content, parsed)
