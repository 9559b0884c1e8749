"""Signals as requests, which the loop reads between two steps.

SIGTERM and SIGINT request a stop, SIGUSR1 a checkpoint; a second SIGINT, a second after the first, exits at once. The
death of the launcher is a stop request, too: a restarted run would else run twice.

A rank that hangs never reads a request, so a stop starts a timeout. If the step does not end in time, the stacks of all
threads go to stderr and the process exits with code 1. The timeout restarts while the writer of a checkpoint makes
progress, and is suspended while a rank waits in a phase of fewer ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_STDERR = 2
_POLL_SECONDS = 0.1  # a stop is noticed at once for a person, and costs nothing


class Signals:
    """Handles signals while it is entered, in the main thread; the former handlers are restored at the end.

    `stop_timeout` is in seconds, from a signal to `reached`. `launcher` is the PID whose death requests a stop.
    """

    def __init__(self, stop_timeout: float, launcher: int | None = None) -> None:
        self.stop: str = ""  # the reason of a stop request: a signal's name, or the launcher's death; empty: none
        self.save = False  # a checkpoint is requested
        self._stop_timeout = stop_timeout
        self._launcher = launcher
        self._interrupted_at = 0.0
        self._former: dict[signal.Signals, Any] = {}
        self._former_wakeup = -1
        self._pipe = (-1, -1)
        self._lock = threading.Lock()  # never taken by a signal handler
        self._polls: list[Callable[[], None]] = []
        self._started = False
        self._holds = 0  # reasons for which the timeout does not run
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Signals:
        for number in (*_STOPPING, signal.SIGUSR1):
            self._former[number] = signal.signal(number, self._handle)
        # Python runs handlers in the main thread only between two instructions, not inside a collective. Signal numbers
        # reach this pipe at once, and the watcher reads them.
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._former_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._former_wakeup)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        os.close(self._pipe[1])
        self._watcher.join()
        os.close(self._pipe[0])
        self.reached()

    def reached(self) -> None:
        """End the timeout for good: the state is saved, and what follows may take longer."""
        with self._lock:
            self._holds += 1
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def patient(self, sign_of_life: Callable[[], object]) -> Iterator[None]:
        """Inside, restart the timeout whenever `sign_of_life` returns another value; and once at the end."""
        last = sign_of_life()

        def poll() -> None:
            nonlocal last
            if (current := sign_of_life()) != last:
                last = current
                self._restart()

        with self._polled(poll):
            yield
        with self._lock:
            self._restart()

    @contextlib.contextmanager
    def waiting(self, report: Callable[[str], None]) -> Iterator[None]:
        """Inside, this rank waits for others: the timeout is suspended, and `report` gets a stop, repeatedly."""
        self.reached()

        def poll() -> None:
            if self.stop:
                report(self.stop)

        try:
            with self._polled(poll):
                yield
        finally:
            with self._lock:
                self._holds -= 1
                self._restart()

    def listening(self, remote_stop: Callable[[], str]) -> contextlib.AbstractContextManager[None]:
        """Inside, a stop request on a waiting rank (`remote_stop`; empty: none) counts on this one, too."""

        def poll() -> None:
            self.stop = self.stop or remote_stop()

        return self._polled(poll)

    @contextlib.contextmanager
    def _polled(self, poll: Callable[[], None]) -> Iterator[None]:
        """Inside, the watcher calls `poll` repeatedly. No call is in progress afterwards."""
        with self._lock:
            self._polls.append(poll)
        try:
            yield
        finally:
            with self._lock:
                self._polls.remove(poll)

    def _restart(self) -> None:
        """Restart a running timeout. Needs the lock."""
        if self._started and not self._holds:
            faulthandler.dump_traceback_later(self._stop_timeout, exit=True, file=_STDERR)

    def wait_for_stop(self, seconds: float) -> None:
        """Wait for a stop request, at most for so many seconds."""
        deadline = time.monotonic() + seconds
        while not self.stop and time.monotonic() < deadline:
            time.sleep(0.02)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save = True
            return
        if number == signal.SIGINT:
            now = time.monotonic()
            if self._interrupted_at and now - self._interrupted_at >= 1.0:
                raise KeyboardInterrupt
            self._interrupted_at = self._interrupted_at or now
        self.stop = signal.Signals(number).name

    def _watch(self) -> None:
        """Read signals and the launcher's death, poll, and start the timeout at the first stop request."""
        pipe = self._pipe[0]
        launcher = None
        if self._launcher is not None:
            with contextlib.suppress(OSError):  # it is dead already, or the kernel has no pidfds
                launcher = os.pidfd_open(self._launcher)
        watched = [pipe] if launcher is None else [pipe, launcher]
        while True:
            ready, _, _ = select.select(watched, [], [], _POLL_SECONDS)
            if pipe in ready:
                if not (byte := os.read(pipe, 1)):
                    break
                if byte[0] in _STOPPING:
                    # Not left to the handler, which waits until the main thread returns from a collective.
                    self.stop = self.stop or signal.Signals(byte[0]).name
            elif ready:
                self.stop = self.stop or "the launcher died"
                watched = [pipe]
            with self._lock:
                for poll in self._polls:
                    # The store that a poll reads may be gone while ranks leave.
                    with contextlib.suppress(RuntimeError):
                        poll()
                if self.stop and not self._started:
                    self._started = True
                    self._restart()
        if launcher is not None:
            os.close(launcher)
