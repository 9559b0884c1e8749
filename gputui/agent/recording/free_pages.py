"""Free pages of the database, returned to the file system a few at a time. Removing a run of millions of lines leaves
most of the file empty."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.agent.slices import TURN_SECONDS, SliceSize
from gputui.store.database import pragma

# Free pages below this, or below a tenth of the file, are kept: new samples soon use them.
KEPT_FREE_PAGES = 8192
_INCREMENTAL = 2


@dataclass(slots=True)
class FreePages:
    """Acts only on a database that was created with incremental auto-vacuum. ``clock`` returns monotonic seconds."""

    connection: sqlite3.Connection
    clock: Callable[[], float]
    size: SliceSize = field(init=False)

    def __post_init__(self) -> None:
        self.size = SliceSize(self.clock, 256, 32, 4096)

    def turn(self) -> bool:
        """Return pages for a few milliseconds; True if more remain. Raises sqlite3.Error."""
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
        # Not execute(): it steps the statement once, which frees one page.
        self.connection.executescript(f"PRAGMA incremental_vacuum({count})")
