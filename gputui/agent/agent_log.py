"""The agent's own log: bounded in size, the newest parts kept."""

from __future__ import annotations

import os
from pathlib import Path

LIMIT_BYTES = 4 << 20
KEPT = 3
"""Files in all: the one that is written, and the two before it, ``.1`` and ``.2``."""


def rotate(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Begin the log anew where it has grown beyond the limit; True when it was. Raises OSError.

    Agent, sampler and whoever started them hold the file open for appending, so that it is copied and cut to zero
    rather than renamed. What is written during the copy is copied too.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(KEPT - 1, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))
    temporary = path.with_name(f"{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with path.open("r+b", buffering=0) as source, os.fdopen(os.open(temporary, flags, 0o600), "wb") as copy:
        while True:
            while piece := source.read(1 << 20):
                copy.write(piece)
            if source.tell() == os.fstat(source.fileno()).st_size:
                copy.flush()
                os.ftruncate(source.fileno(), 0)
                break
    temporary.replace(path.with_name(f"{path.name}.1"))
    return True
