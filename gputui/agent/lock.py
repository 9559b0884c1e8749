"""The agent's lock (one agent per state directory), its limits, and its log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.core.redaction import Redactor, secrets_in
from gputui.core.yaml_forms.quantities import format_size


class AgentRunningError(Exception):
    """Another agent holds the lock."""


@dataclass(slots=True)
class AgentLock:
    """The held lock. Its file is never unlinked: a lock on an unlinked file protects nothing."""

    descriptor: int

    @classmethod
    def take(cls, path: Path) -> AgentLock:
        """Take the lock. Raises AgentRunningError if another process holds it, OSError if the file
        cannot be used."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AgentRunningError(f"an agent already runs for {path.parent}") from error
        return cls(descriptor)

    def describe(self, record: dict[str, Any]) -> None:
        """Write who holds the lock into its file."""
        data = json.dumps(record).encode()
        os.pwrite(self.descriptor, data.ljust(os.fstat(self.descriptor).st_size), 0)

    def release(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


_RAISED = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)


def raise_limits() -> None:
    """Raise the limits that would end this process or its writes: as root to the highest value,
    else to the hard limit."""
    for number in _RAISED:
        _, hard = resource.getrlimit(number)
        # The number of files has no unlimited value: the hard limit is what the system gives.
        is_unlimited = os.geteuid() == 0 and number != resource.RLIMIT_NOFILE
        for most in (hard, resource.RLIM_INFINITY if is_unlimited else hard):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (most, most))


def why_unwritable() -> str:
    """What may keep this process from writing, as the end of a sentence."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    text = "see whether its disk is full"
    if soft != resource.RLIM_INFINITY:
        text += f", or whether it reached the limit of {format_size(soft)} per file (ulimit -f)"
    return text


LIMIT_BYTES = 4 << 20
KEPT = 3
"""Number of files: the current one and its two predecessors, ``.1`` and ``.2``."""


def rotate(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Rotate the log if it exceeds the limit; return whether it did. Raises OSError.

    The file is copied and truncated, not renamed, because the agent, the sampler and the process
    that started them keep it open for appending. Lines written during the copy are copied too.
    """
    if not path.exists() or path.stat().st_size <= limit_bytes:
        return False
    for number in range(KEPT - 1, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))
    temporary = path.with_name(f"{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, PRIVATE_FILE_MODE)
    with path.open("r+b", buffering=0) as source, os.fdopen(descriptor, "wb") as copy:
        while source.tell() < os.fstat(source.fileno()).st_size:
            shutil.copyfileobj(source, copy)
        copy.flush()
        source.truncate(0)
    temporary.replace(path.with_name(f"{path.name}.1"))
    return True


class HidingFormatter(logging.Formatter):
    """Redacts the secrets of the agent's environment from log lines and tracebacks."""

    def __init__(self, pattern: str, date_pattern: str) -> None:
        super().__init__(pattern, date_pattern)
        self._redactor = Redactor(secrets_in(os.environ, {}))

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))
