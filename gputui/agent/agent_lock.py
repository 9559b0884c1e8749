"""The lock of one state directory, which one agent holds."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputui.core.config import PRIVATE_FILE_MODE


class AgentRunningError(Exception):
    """Another agent holds the lock."""


@dataclass(slots=True)
class AgentLock:
    """The held lock. Its file is never unlinked: a lock on an unlinked file protects nothing."""

    descriptor: int

    @classmethod
    def take(cls, path: Path) -> AgentLock:
        """Take the lock.

        Raises:
            AgentRunningError: another process holds it.
            OSError: the file cannot be used.
        """
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
