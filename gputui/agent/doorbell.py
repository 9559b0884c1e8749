"""File notifications that wake the agent when a client has written a command.

Only an optimization: without notifications (no inotify watch or thread left, a network file system) the loop polls.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.core.config import file_system_of, is_network_file_system

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

log = logging.getLogger(__name__)


class Doorbell:
    """Calls ``ring`` from another thread when an entry of ``folder`` changes; subfolders are not watched, so the number
    of threads does not depend on the number of runs."""

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        self._folder = folder
        self._ring = ring
        self._observer: BaseObserver | None = None

    @property
    def is_heard(self) -> bool:
        """Whether notifications work."""
        return self._observer is not None

    def start(self) -> None:
        """Start to listen. A failure is logged and leaves `is_heard` False."""
        try:
            self._observer = self._listen()
        except (ImportError, OSError, RuntimeError) as error:
            # RuntimeError: no thread can be started.
            log.warning("commands are looked for instead of listened for: %s", error)

    def stop(self) -> None:
        """Stop the threads, if there are any."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()

    def _listen(self) -> BaseObserver:
        mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
        kind = file_system_of(self._folder.resolve(), mountinfo)
        if is_network_file_system(kind):
            raise OSError(f"{kind} does not notify of changes made elsewhere")
        from watchdog import events
        from watchdog.observers.inotify import InotifyObserver

        ring = self._ring

        class Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:
                ring()

        kinds: list[Any] = [
            events.FileCreatedEvent,
            events.FileModifiedEvent,
            # A touched file; watchdog 6 called it modified.
            getattr(events, "FileAttribEvent", events.FileModifiedEvent),
        ]
        # Harmless: watchdog warns about folders that come and go quickly.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        observer = InotifyObserver()
        try:
            observer.schedule(Handler(), str(self._folder), event_filter=kinds)
            observer.start()
        except (OSError, RuntimeError):
            # RuntimeError: an observer that never ran cannot be joined.
            with contextlib.suppress(RuntimeError):
                observer.stop()
            raise
        return observer
