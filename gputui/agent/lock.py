"""One agent per state directory: a lock that the kernel lets go of however the agent dies, with its holder's name."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputui.config import PRIVATE_FILE_MODE


class AgentRunningError(Exception):
    """Another agent holds the lock."""


@dataclass(slots=True)
class AgentLock:
    """The held lock. Its file is never unlinked: a lock on an unlinked file would protect nothing."""

    descriptor: int

    @classmethod
    def take(cls, path: Path) -> AgentLock:
        """Raises AgentRunningError when held elsewhere, OSError when the file cannot be used."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AgentRunningError(f"an agent already runs for {path.parent}") from error
        return cls(descriptor)

    def describe(self, record: dict[str, Any]) -> None:
        """Say in the file who holds it."""
        data = json.dumps(record).encode()
        os.pwrite(self.descriptor, data.ljust(os.fstat(self.descriptor).st_size), 0)

    def release(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)
