"""A format of records instead of lines, as other trackers write their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gputui.core.training_log import RESERVED_NAMES
from gputui.metrics.line_format import LineFormat

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""

Frames = Iterator[tuple[int, bytes]]
"""The end of each complete record, from the start of the data, and its content."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


class RecordFormat(LineFormat):
    """A format of one file of records: its reader calls `frames` and `scalars` in place of `parse`."""

    def frames(self, data: bytes, offset: int) -> Frames:
        """The complete records at the beginning of ``data``, which begins ``offset`` bytes from the start of the file.
        Raises DamagedRecordError."""
        raise NotImplementedError

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        """The scalars of a record as a metrics line, with step and time; None without any. Raises
        DamagedRecordError."""
        raise NotImplementedError

    @property
    def inherited(self) -> Any:
        return None


def unreserved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of which those with a reserved name, such as ``rank``, got an underscore."""
    names = {name: f"{name}_" for name in values.keys() & RESERVED_NAMES}
    return {names.get(name, name): value for name, value in values.items()}
