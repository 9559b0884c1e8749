"""The settings while the screen is open: changed at once, written by a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputui.tui.settings import Settings, save

END_SECONDS = 2.0


class Preferences:
    """Holds the settings. ``tell`` is called from a thread with a sentence when they cannot be kept."""

    def __init__(self, settings: Settings, path: Path | None, tell: Callable[[str], object]) -> None:
        self.settings = settings
        self._path = path
        self._tell = tell
        self._lock = threading.Lock()
        self._unsaved: dict[str, Any] = {}
        self._writer: threading.Thread | None = None

    def change(self, **changes: Any) -> None:
        """Change settings, for now and for the next start."""
        self.settings = replace(self.settings, **changes)
        if self._path is None:
            return
        with self._lock:
            self._unsaved |= {name: _plain(value) for name, value in changes.items()}
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, args=(self._path,), name="settings", daemon=True)
                self._writer.start()

    def finish(self) -> None:
        """Wait for what is being written, but not for a disk that hangs."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(END_SECONDS)

    def _write(self, path: Path) -> None:
        while True:
            with self._lock:
                changes, self._unsaved = self._unsaved, {}
                if not changes:
                    self._writer = None
                    return
            try:
                said = save(path, changes)
            except OSError as error:
                said = f"The settings hold only until the end: {path} cannot be written ({error.strerror})."
            if said is not None:
                self._tell(said)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
