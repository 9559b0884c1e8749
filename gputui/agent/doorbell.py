"""The bell that wakes the agent at once when a command was written: watchdog over the folder of all runs, not below it.

Nothing depends on it: what is not heard, because the kernel has no watch or no thread left or the file system never
notifies, is found a little later by looking.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.config import file_system_of, is_network_file_system

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

log = logging.getLogger(__name__)


class Doorbell:
    """Calls ``ring``, from another thread, when something changes directly in ``folder``. The number of threads is
    the same for any number of runs."""

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        self._folder = folder
        self._ring = ring
        self._observer: BaseObserver | None = None

    @property
    def is_heard(self) -> bool:
        """Whether changes are notified at all."""
        return self._observer is not None

    def start(self) -> None:
        """Begin to listen; where that is impossible it is logged, and `is_heard` stays False."""
        try:
            self._observer = self._listen()
        except (ImportError, OSError, RuntimeError) as error:
            # RuntimeError: no thread can be started.
            log.warning("commands are looked for instead of listened for: %s", error)

    def stop(self) -> None:
        """End the threads. May be called without a start."""
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
        # Logged by watchdog for folders that come and go quickly; nothing is missed.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        observer = InotifyObserver()
        try:
            observer.schedule(Handler(), str(self._folder), event_filter=kinds)
            observer.start()
        except (OSError, RuntimeError):
            # What was started of it ends; an observer that never ran cannot be joined.
            with contextlib.suppress(RuntimeError):
                observer.stop()
            raise
        return observer
