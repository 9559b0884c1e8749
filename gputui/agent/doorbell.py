"""What wakes the agent's loop, among it the file notifications of commands that clients write."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import warnings
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from watchdog import events
from watchdog.observers.inotify import InotifyObserver

log = logging.getLogger(__name__)

_PIPE_BYTES = 65536  # the size of a pipe, so that one read empties it


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


class Wakeups:
    """What ends the pause of the loop: the descriptors of its selector, a byte in a pipe of its own, and clients who
    write commands.

    Attributes:
        read_end: the descriptor of the pipe that the loop waits for.
        write_end: the one that signals, threads and the doorbell write to.
    """

    def __init__(self, command_folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.read_end, self.write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.doorbell = Doorbell(command_folder, self.ring)

    def listen(self) -> None:
        """Let the pipe end a pause from now on."""
        self.selector.register(self.read_end, selectors.EVENT_READ, data=None)

    def ring(self) -> None:
        """End the pause; from any thread."""
        # The pipe may be full of wake-ups already, or the loop have ended.
        with contextlib.suppress(OSError):
            os.write(self.write_end, b"\0")

    def answer(self, ready: Set[int]) -> bool:
        """Empty the pipe if it is one of the descriptors that are ready; return whether it is."""
        if self.read_end not in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self.read_end, _PIPE_BYTES):
                pass
        return True
