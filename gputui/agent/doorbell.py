"""The file notifications that wake the agent when a client has written a command."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog import events
from watchdog.observers.inotify import InotifyObserver

log = logging.getLogger(__name__)


class Doorbell:
    """Calls ``ring`` from another thread when an entry of ``folder`` changes. Without notifications
    (no inotify watch or thread is left) the loop polls."""

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        self._folder = folder
        self._ring = ring
        self._observer: InotifyObserver | None = None

    @property
    def is_heard(self) -> bool:
        """True if notifications work."""
        return self._observer is not None

    def start(self) -> None:
        """Start to listen. A failure is logged and leaves `is_heard` False."""
        handler = events.FileSystemEventHandler()
        handler.on_any_event = lambda _event: self._ring()  # type: ignore[assignment, method-assign]
        kinds: list[Any] = [events.FileCreatedEvent, events.FileModifiedEvent]
        # A touched file; watchdog 6 called it modified.
        kinds.append(getattr(events, "FileAttribEvent", events.FileModifiedEvent))
        # Harmless: watchdog warns about folders that come and go quickly.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        observer = InotifyObserver()
        try:
            observer.schedule(handler, str(self._folder), event_filter=kinds)
            observer.start()
            self._observer = observer
        except (OSError, RuntimeError) as error:
            log.warning("commands are looked for instead of listened for: %s", error)

    def stop(self) -> None:
        """Stop the threads, if there are any."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None
