"""Looking for the checkpoint that a run can be resumed from, in a thread: checkpoints are read whole, and the agent's
loop waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gputui.recovery.checkpoints import CheckpointInfo, newest_valid


class CheckpointSearch:
    """One search under way. ``wake`` is called from its thread when it is over."""

    def __init__(self, folder: Path, pattern: str, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._pattern = pattern
        self._wake = wake
        self._found: CheckpointInfo | None = None
        self._error: Exception | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name=f"search-{folder.parent.name}", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def found(self) -> CheckpointInfo | None:
        """The newest checkpoint that is whole, None where there is none. Only when it is over; raises what the search
        raised."""
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = newest_valid(self._folder, self._pattern)
        except Exception as error:
            self._error = error
        self._over.set()
        self._wake()
