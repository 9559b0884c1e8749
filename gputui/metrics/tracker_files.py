"""What the files of other trackers have in common: they are sequences of framed records, of which only those that hold
scalars matter. `tensorboard_files` and `wandb_files` read them, without I/O and without their own libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MAX_RECORD_BYTES = 64 << 20
"""A length beyond it is no length: the file is damaged there."""
LARGEST_READ_BYTES = 1 << 20
"""Larger records are passed over unread: pictures, sounds and tables."""

# Names by which a metrics line says something else than a value (`contract.parse_values`).
_RESERVED = frozenset({"step", "time", "rank", "event", "phase"})

Read = Callable[[int, int], bytes]
"""``read(length, offset)``: so many bytes of a file from an offset on, fewer at its end."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be understood; the text says which."""


class RecordFrame(NamedTuple):
    """A record in a file, by offsets from the place where reading began."""

    start: int
    # Where the next record begins.
    end: int
    # The record itself; None if a checksum is wrong or a part is missing.
    content: bytes | None


def as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as the values of a metrics line; None without any. A scalar whose name has a meaning of its
    own in such a line (``rank``) gets an underscore behind it."""
    if not values:
        return None
    named = {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
    return {**named, "step": step, "time": time}
