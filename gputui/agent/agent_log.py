"""The agent's own log: rotated by size and free of secrets."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gputui.core.redaction import Redactor, secrets_in

LIMIT_BYTES = 4 << 20
KEPT = 3
"""Number of files: the current one and its two predecessors, ``.1`` and ``.2``."""


def rotate(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Rotate the log if it exceeds the limit; return whether it did. Raises OSError.

    The file is copied and truncated, not renamed, because the agent, the sampler and the process that started them keep
    it open for appending. Lines written during the copy are copied too.
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


class HidingFormatter(logging.Formatter):
    """Redacts the secrets of the agent's environment from log lines and tracebacks."""

    def __init__(self, pattern: str, date_pattern: str) -> None:
        super().__init__(pattern, date_pattern)
        self._redactor = Redactor(secrets_in(os.environ, {}))

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))
