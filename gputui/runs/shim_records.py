"""The records of an attempt, JSON files that survive a full disk and a power cut.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

RECORD_BYTES = 4096  # one block, which most file systems reserve as a whole


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write JSON so that it is complete or missing, also after a power cut. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    # Not truncated first, which would lose the reserved space.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_record(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(value, dict):
        return value
    return None


def reserve_record(path: Path) -> None:
    """Reserve space for a record: the command may fill the disk, and its end must still be
    recorded."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path.with_name(path.name + ".tmp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RECORD_BYTES)
        finally:
            os.close(descriptor)
