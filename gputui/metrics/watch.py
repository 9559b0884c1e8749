"""Waking the agent when a run's files change: by inotify through watchdog, by looking where that does not work.

A run that writes often is looked at on a beat instead: from ten lines a second on, the notifications, each through
three threads of watchdog, cost more than looking does. So is every run on a file system that does not notify, or when
the kernel's limits are used up. The agent looks at all live files once a second anyway; what is done here only makes it
sooner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gputui.config import NETWORK_FILE_SYSTEMS, file_system_of
from gputui.metrics.folders import is_alive, signature, surface

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver, ObservedWatch

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
HOT_EVENTS_PER_SECOND = 10
CALM_SECONDS = 10.0
PROBE_SECONDS = 0.5
MAX_FOLLOWED = 32

Mode = Literal["inotify", "polling"]


@dataclass(slots=True, eq=False)
class _Followed:
    """One run's folder. It is looked at where ``watch`` is None."""

    folder: Path
    watch: ObservedWatch | None = None
    seen: object = None
    changed_at: float = 0.0
    counted_since: float = 0.0
    count: int = 0


class FileWatcher:
    """Watches the folder ``runs`` and the folders of the runs in it that are alive.

    After each change a byte is written to ``wake_fd`` (non-blocking, the agent's), and `take` tells which runs it was.
    New folders are followed by themselves; a run that begins again after it was over needs `follow`.
    ``force_polling`` is for file systems of which the user knows better.
    """

    def __init__(self, runs: Path, wake_fd: int, *, force_polling: bool = False) -> None:
        self._runs = runs
        self._wake_fd = os.dup(wake_fd)
        self._why_polling = "asked for" if force_polling else None
        self._followed: dict[str, _Followed] = {}
        self._dirty: set[str] = set()
        self._lock = threading.Lock()
        # Only the keeper thread schedules and unschedules: watchdog calls back under a lock of its own.
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._observer: BaseObserver | None = None
        self._root_seen: object = None
        self._keeper: threading.Thread | None = None

    @property
    def mode(self) -> Mode:
        """How changes are noticed, busy runs apart."""
        return "inotify" if self._why_polling is None else "polling"

    @property
    def why_polling(self) -> str | None:
        """Why notification is not used, in a few words."""
        return self._why_polling

    def start(self) -> None:
        """Begin; from here on a change is noticed. Returns when `mode` is settled."""
        if self._why_polling is None:
            self._why_polling = self._start_notification()
        self._root_seen = surface(self._runs)
        for name in [name for name, _ in surface(self._runs) if (self._runs / name).is_dir()]:
            if is_alive(self._runs / name):
                self._follow(name)
        self._keeper = threading.Thread(target=self._keep, name="file-watcher", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """End all threads. Not to be started again."""
        if self._keeper is not None:
            self._requests.put(None)
            self._keeper.join()
            self._keeper = None
            os.close(self._wake_fd)
        self._stop_notification()

    def follow(self, run_id: str) -> None:
        """Watch a run's folder from now on; nothing happens where it is followed already."""
        self._requests.put(lambda: self._follow(run_id))

    def unfollow(self, run_id: str) -> None:
        """A run is over: its folder need not be watched."""
        self._requests.put(lambda: self._unfollow(run_id))

    def take(self) -> set[str]:
        """The runs whose files changed since the last call; "" stands for what lies in the runs' folder itself."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        return dirty

    # --- notification -----------------------------------------------------------------------------------------------

    def _start_notification(self) -> str | None:
        """Watch the runs' folder through the kernel; the reason where that does not work."""
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
            kind = file_system_of(self._runs.resolve(), mountinfo)
        except OSError:
            kind = None
        if kind in NETWORK_FILE_SYSTEMS:
            return f"{kind} does not tell of changes made elsewhere"
        try:
            from watchdog.observers.inotify import InotifyObserver

            # Said of folders that come and go quickly, with kilobytes of its own bookkeeping; nothing is missed.
            warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
            self._observer = InotifyObserver()
            self._observer.start()
            self._schedule(self._runs, self._on_root_event, recursive=False)
        except (ImportError, OSError) as error:
            self._stop_notification()
            return str(error)
        if not self._probe():
            self._stop_notification()
            return "the kernel did not tell of a new file"
        return None

    def _stop_notification(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None and observer.is_alive():
            observer.stop()
            observer.join()

    def _probe(self) -> bool:
        """Whether notification works here at all: some file systems take a watch and never tell."""
        probe = self._runs / f".probe-{os.getpid()}"
        deadline = time.monotonic() + PROBE_SECONDS
        try:
            probe.touch()
        except OSError:
            return False
        try:
            while time.monotonic() < deadline:
                if "" in self.take():
                    return True
                time.sleep(0.002)
            return False
        finally:
            probe.unlink(missing_ok=True)

    def _schedule(self, folder: Path, callback: Callable[[FileSystemEvent], None], *, recursive: bool) -> ObservedWatch:
        """Raises OSError where the kernel refuses (no such folder, no watches left)."""
        from watchdog import events

        class Handler(events.FileSystemEventHandler):
            def dispatch(self, event: FileSystemEvent) -> None:
                callback(event)

        assert self._observer is not None
        kinds: list[Any] = [
            events.FileCreatedEvent,
            events.DirCreatedEvent,
            events.FileModifiedEvent,
            events.FileMovedEvent,
            # A touched file; watchdog 6 called it modified.
            getattr(events, "FileAttribEvent", events.FileModifiedEvent),
        ]
        return self._observer.schedule(Handler(), str(folder), recursive=recursive, event_filter=kinds)

    def _on_root_event(self, event: FileSystemEvent) -> None:
        self._mark("")
        if event.is_directory and event.event_type in ("created", "moved"):
            name = Path(os.fsdecode(event.dest_path or event.src_path)).name
            self.follow(name)

    def _on_run_event(self, run_id: str, followed: _Followed) -> None:
        now = time.monotonic()
        if now - followed.counted_since > 1.0:
            followed.counted_since, followed.count = now, 0
        followed.count += 1
        if followed.count == HOT_EVENTS_PER_SECOND:
            self._requests.put(lambda: self._look_instead(run_id, followed))
        self._mark(run_id)

    def _mark(self, run_id: str) -> None:
        with self._lock:
            self._dirty.add(run_id)
        # A full pipe is a reader that will wake anyway.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._wake_fd, b"f")

    # --- the keeper's thread ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Do what was asked for; in between look at what cannot be listened to."""
        look_at = time.monotonic() + POLL_SECONDS
        while True:
            looking = self._observer is None or any(followed.watch is None for followed in self._followed.values())
            try:
                request = self._requests.get(timeout=max(0.0, look_at - time.monotonic()) if looking else None)
            except queue.Empty:
                self._look(time.monotonic())
                look_at = time.monotonic() + POLL_SECONDS
                continue
            if request is None:
                return
            request()

    def _look(self, now: float) -> None:
        if self._observer is None:
            seen = surface(self._runs)
            if seen != self._root_seen:
                self._root_seen = seen
                self._mark("")
                for name, _ in seen:
                    self._follow(name)
        for run_id, followed in list(self._followed.items()):
            if followed.watch is not None:
                continue
            files = signature(followed.folder)
            if files != followed.seen:
                followed.seen, followed.changed_at = files, now
                self._mark(run_id)
            elif self._observer is not None and now - followed.changed_at > CALM_SECONDS:
                self._listen(run_id, followed)

    def _follow(self, run_id: str) -> None:
        folder = self._runs / run_id
        if run_id in self._followed or not run_id or not folder.is_dir():
            return
        followed = self._followed[run_id] = _Followed(folder)
        self._listen(run_id, followed)
        if len(self._followed) > MAX_FOLLOWED:
            for other in [name for name, known in self._followed.items() if not is_alive(known.folder)]:
                self._unfollow(other)

    def _unfollow(self, run_id: str) -> None:
        followed = self._followed.pop(run_id, None)
        if followed is not None:
            self._unschedule(followed)

    def _listen(self, run_id: str, followed: _Followed) -> None:
        """Be told of changes where possible; what changed in between is not lost, for the run counts as changed."""
        followed.changed_at = time.monotonic()
        if self._observer is not None:
            try:
                followed.watch = self._schedule(
                    followed.folder, lambda _event: self._on_run_event(run_id, followed), recursive=True
                )
            except OSError as error:
                log.info("%s is looked at instead of listened to: %s", followed.folder, error)
        if followed.watch is None:
            followed.seen = signature(followed.folder)
        self._mark(run_id)

    def _look_instead(self, run_id: str, followed: _Followed) -> None:
        if followed.watch is not None:
            self._unschedule(followed)
            followed.seen, followed.changed_at = signature(followed.folder), time.monotonic()
            self._mark(run_id)

    def _unschedule(self, followed: _Followed) -> None:
        watch, followed.watch = followed.watch, None
        if watch is not None and self._observer is not None:
            # Watchdog has let go by itself of a folder that was deleted.
            with contextlib.suppress(KeyError):
                self._observer.unschedule(watch)
