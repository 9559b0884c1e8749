"""Event files of TensorBoard.

A record is framed (tensorflow/core/lib/io/record_writer.h) as its length (8 bytes), the masked CRC-32C of the length
(4), the content, and the masked CRC-32C of the content (4). The content is a protocol buffer of type Event
(tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from gputui.metrics.protobuf import FIXED32, FIXED64, LENGTH, VARINT, FieldBudget, varint
from gputui.metrics.tracker_files import MAX_RECORD_BYTES, DamagedRecordError, Read, RecordFrame, as_line

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


# --- records ----------------------------------------------------------------------------------------------------------


def event_frames(data: bytes, _offset: int) -> Iterator[RecordFrame]:
    """The complete records at the beginning of ``data``. Raises DamagedRecordError."""
    position = 0
    while len(data) - position >= _HEADER.size:
        length = _length(data[position : position + _HEADER.size])
        begin = position + _HEADER.size
        end = begin + length + _FOOTER_BYTES
        if end > len(data):
            return
        content = data[begin : begin + length]
        is_whole = length > _CHECKED_BYTES or masked_crc(content).to_bytes(4, "little") == data[begin + length : end]
        yield RecordFrame(position, end, content if is_whole else None)
        position = end


def event_end(read: Read, offset: int) -> int | None:
    """The end of the record at ``offset``, None if its header is incomplete. Raises DamagedRecordError."""
    header = read(_HEADER.size, offset)
    if len(header) < _HEADER.size:
        return None
    return offset + _HEADER.size + _length(header) + _FOOTER_BYTES


def _length(header: bytes) -> int:
    length, check = _HEADER.unpack(header)
    if length > MAX_RECORD_BYTES or masked_crc(header[:8]) != check:
        raise DamagedRecordError("no record of an event file")
    return int(length)


# --- scalars ----------------------------------------------------------------------------------------------------------


def event_scalars(record: bytes) -> dict[str, Any] | None:
    """The scalars of an event as a metrics line, with step and time; None without any. Raises DamagedRecordError."""
    values: dict[str, Any] = {}
    step, time = 0, None
    budget = FieldBudget()
    for number, wire, value in budget.fields(record):
        if number == _EVENT_TIME and wire == FIXED64:
            (time,) = struct.unpack("<d", value)
        elif number == _EVENT_STEP and wire == VARINT:
            step = value
        elif number == _EVENT_SUMMARY and wire == LENGTH:
            for inner, kind, content in budget.fields(value):
                if inner == _SUMMARY_VALUE and kind == LENGTH:
                    tag, scalar = _tagged_scalar(content, budget)
                    if scalar is not None:
                        values[tag] = scalar
    return as_line(values, step, time)


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
            if any(inner == _SHAPE_DIMENSION for inner, _, _ in budget.fields(value)):
                return None
        elif number in (_TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES) and wire in (LENGTH, FIXED32, FIXED64):
            packed = value
        elif number in (_TENSOR_INTS, _TENSOR_INT64S) and wire in (VARINT, LENGTH):
            integer = value if wire == VARINT else varint(value, 0)[0]
    if integer is not None and dtype in (_INT32, _INT64):
        # A negative number is the varint of its 64 bits in two's complement.
        return float(integer - (1 << 64) if integer >= 1 << 63 else integer)
    form = _PACKED.get(dtype)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


# --- checksums --------------------------------------------------------------------------------------------------------


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
    """The CRC-32C of some bytes, masked as in event files. Takes 0.1 µs per byte."""
    value = 0xFFFFFFFF
    for byte in content:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
