"""Shared by the parsers of other trackers' files, `tensorboard_files` and `wandb_files`.

These files are sequences of framed records, of which only those with scalars matter. The parsers do no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""
LARGEST_READ_BYTES = 1 << 20
"""Larger records (images, audio, tables) are skipped."""

# Names that are no metrics in a metrics line (`contract.parse_values`).
_RESERVED = frozenset({"step", "time", "rank", "event", "phase"})

Read = Callable[[int, int], bytes]
"""``read(length, offset)`` → bytes of a file, fewer at its end."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


class RecordFrame(NamedTuple):
    """A record, with offsets from the start of the data."""

    start: int
    end: int
    content: bytes | None
    """None if a checksum is wrong or a part is missing."""


def as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as a metrics line; None without any. Scalars with a reserved name, such as ``rank``, get an
    underscore."""
    if not values:
        return None
    named = {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
    return {**named, "step": step, "time": time}
