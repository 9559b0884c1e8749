"""Protocol buffers without their descriptions: the fields of a message by number (protobuf.dev, "Encoding")."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from gputui.metrics.record_format import DamagedRecordError

_VARINT = 0
_FIXED64 = 1
_LENGTH = 2
_FIXED32 = 5
_BYTES_OF_WIRE_TYPE = {_FIXED64: 8, _FIXED32: 4}
# A varint has at most 10 bytes of 7 bits.
_VARINT_BITS = 70


class ProtoMessage:
    """A message: by field number its values, integers of varints, and bytes of all other fields. Raises
    DamagedRecordError."""

    def __init__(self, content: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(content):
            key, position = varint(content, position)
            wire_type = key & 7
            value: int | bytes
            if wire_type == _VARINT:
                value, position = varint(content, position)
            else:
                if wire_type == _LENGTH:
                    length, position = varint(content, position)
                elif wire_type in _BYTES_OF_WIRE_TYPE:
                    length = _BYTES_OF_WIRE_TYPE[wire_type]
                else:
                    raise DamagedRecordError("not a protocol buffer")
                value = content[position : position + length]
                position += length
                if position > len(content):
                    raise DamagedRecordError("a protocol buffer that is cut off")
            self._values.setdefault(key >> 3, []).append(value)

    def values(self, field: int) -> Sequence[int | bytes]:
        """The values of a field, in the order in which they were written."""
        return self._values.get(field, [])

    def contents(self, field: int) -> list[bytes]:
        """The values with a length: texts, messages, packed numbers."""
        return [value for value in self.values(field) if isinstance(value, bytes)]

    def messages(self, field: int) -> Iterator[ProtoMessage]:
        """Raises DamagedRecordError."""
        return map(ProtoMessage, self.contents(field))

    def text(self, field: int) -> str:
        return b"".join(self.contents(field)).decode("utf-8", "replace")


def varint(content: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at ``position`` and the position behind it. Raises DamagedRecordError."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        if position >= len(content):
            raise DamagedRecordError("a protocol buffer that is cut off")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedRecordError("not a protocol buffer")


def packed_number(form: str, values: Sequence[int | bytes]) -> float | None:
    """The last of some values that is a number in this form of `struct`."""
    size = struct.calcsize(form)
    fitting = [value for value in values if isinstance(value, bytes) and len(value) == size]
    if fitting:
        number: float = struct.unpack(form, fitting[-1])[0]
        return number
    return None
