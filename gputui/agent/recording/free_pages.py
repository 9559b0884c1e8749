"""Free pages of the database, given back to the file system a few at a time: a run of millions of lines leaves most of
the file empty. Some are kept, for they are soon used again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.agent.slices import TURN_SECONDS, SliceSize
from gputui.store.database import pragma

# Free pages below this, or below a tenth of the file, are kept: an hour of eight GPUs at 10 Hz frees 6000 when it is
# packed, and the next one takes them.
KEPT_FREE_PAGES = 8192
_INCREMENTAL = 2


@dataclass(slots=True)
class FreePages:
    """Works only on a file that was created to allow it. ``clock`` gives monotonic seconds."""

    connection: sqlite3.Connection
    clock: Callable[[], float]
    size: SliceSize = field(init=False)

    def __post_init__(self) -> None:
        self.size = SliceSize(self.clock, 256, 32, 4096)

    def turn(self) -> bool:
        """Give back pages for a few milliseconds; whether there are more. Raises sqlite3.Error."""
        deadline = self.clock() + TURN_SECONDS
        while self._is_too_many():
            self.size.run(self._give_back)
            if self.clock() >= deadline:
                return self._is_too_many()
        return False

    def _is_too_many(self) -> bool:
        free, pages = (pragma(self.connection, name) for name in ("freelist_count", "page_count"))
        return free > max(KEPT_FREE_PAGES, pages // 10) and pragma(self.connection, "auto_vacuum") == _INCREMENTAL

    def _give_back(self, count: int) -> None:
        # Not execute, which steps once: that would give back one page.
        self.connection.executescript(f"PRAGMA incremental_vacuum({count})")
