"""Parse the fields of a protocol buffer (protobuf.dev, "Encoding") without a schema and with bounded work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputui.metrics.tracker_files import DamagedRecordError

# Wire types.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

# Per record; each field takes half a microsecond.
MAX_FIELDS = 10_000


class FieldBudget:
    """The number of fields of a record that may still be read: a record with millions would block the agent."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def fields(self, message: bytes) -> Iterator[tuple[int, int, Any]]:
        """(number, wire type, value) of each field of a message. The value is an integer for VARINT, else bytes. Raises
        DamagedRecordError, also when the budget is spent."""
        position = 0
        while position < len(message):
            self._left -= 1
            if self._left < 0:
                raise DamagedRecordError(f"more than {MAX_FIELDS} fields")
            key, position = varint(message, position)
            number, wire = key >> 3, key & 7
            if wire == VARINT:
                value, position = varint(message, position)
                yield number, wire, value
                continue
            if wire == LENGTH:
                length, position = varint(message, position)
            elif wire in (FIXED64, FIXED32):
                length = 8 if wire == FIXED64 else 4
            else:
                raise DamagedRecordError("not a protocol buffer")
            if position + length > len(message):
                raise DamagedRecordError("a protocol buffer that is cut off")
            yield number, wire, message[position : position + length]
            position += length


def varint(content: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at ``position`` and the position behind it. Raises DamagedRecordError."""
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
