"""Signals as requests that the loop looks at between two steps.

SIGTERM and SIGINT ask to stop, SIGUSR1 asks for a checkpoint. A second SIGINT a second or more after the first one ends
at once, as a person who presses ctrl+c twice expects. SIGTERM may come any number of times: a launcher forwards it and
a supervisor may send it as well.

Where a launcher started the ranks, its death asks to stop as well: nothing supervises them then, and whoever starts
the run again would have it twice.

A rank that hangs never looks. So a stop also starts a clock: where the step does not end in time, the stacks of all
threads go to stderr and the process ends with exit code 1. While a checkpoint is written the clock starts over with
every sign of life of the writer, and pauses while a rank waits out a phase.
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
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_STDERR = 2
_POLL_SECONDS = 0.25
_WAKE = b"\0"  # on the pipe of arrivals: no signal, but something to poll


class Signals:
    """Use as a context manager in the main thread; the former handlers come back at the end.

    `stop_timeout` is in seconds, from the signal to `reached`. `launcher` is the process whose death asks to stop.
    """

    def __init__(self, stop_timeout: float, launcher: int | None = None) -> None:
        self.stop: str = ""  # what asked to stop: the name of a signal, or the launcher's death
        self.save = False
        self._stop_timeout = stop_timeout
        self._launcher = launcher
        self._interrupted_at = 0.0
        self._former: dict[signal.Signals, Any] = {}
        self._former_wakeup = -1
        self._arrivals = (-1, -1)
        self._lock = threading.Lock()  # never taken by a signal handler
        self._polls: list[Callable[[], None]] = []
        self._started = self._over = self._suspended = False
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Signals:
        for number in (*_STOPPING, signal.SIGUSR1):
            self._former[number] = signal.signal(number, self._handle)
        # Handlers run between two instructions of the main thread. The number of a signal is written here even while
        # the main thread waits inside a collective, and another thread can read it.
        self._arrivals = os.pipe()
        os.set_blocking(self._arrivals[1], False)
        self._former_wakeup = signal.set_wakeup_fd(self._arrivals[1], warn_on_full_buffer=False)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._former_wakeup)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        os.close(self._arrivals[1])
        self._watcher.join()
        os.close(self._arrivals[0])
        self.reached()

    def reached(self) -> None:
        """The step has ended and the stop is being dealt with: what follows may take its time."""
        with self._lock:
            self._over = True
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def patient(self, sign_of_life: Callable[[], object]) -> Iterator[None]:
        """Inside, and at the end of it, the clock of a stop starts over whenever `sign_of_life` has changed."""
        last = sign_of_life()

        def poll() -> None:
            nonlocal last
            now = sign_of_life()
            if now != last:
                last = now
                self._restart()

        with self._polled(poll):
            yield
        with self._lock:
            self._restart()

    @contextlib.contextmanager
    def waiting(self, report: Callable[[str], None]) -> Iterator[None]:
        """This rank waits for others, and has nothing to finish: no clock runs, and a stop is reported to them once."""
        reported = False

        def poll() -> None:
            nonlocal reported
            if self.stop and not reported:
                reported = True
                report(self.stop)

        with self._lock:
            self._suspended = True
            faulthandler.cancel_dump_traceback_later()
        try:
            with self._polled(poll):
                yield
        finally:
            with self._lock:
                self._suspended = False
                self._restart()

    @contextlib.contextmanager
    def listening(self, heard: Callable[[], str]) -> Iterator[None]:
        """Inside, what asked ranks that wait to stop (`heard`; empty: nothing so far) asks this one as well."""

        def poll() -> None:
            if not self.stop and (name := heard()):
                self.stop = name
                self._start()

        with self._polled(poll):
            yield

    @contextlib.contextmanager
    def _polled(self, poll: Callable[[], None]) -> Iterator[None]:
        """The watching thread calls `poll` now and then; no call of it is under way afterwards."""
        with self._lock:
            self._polls.append(poll)
        os.write(self._arrivals[1], _WAKE)
        try:
            yield
        finally:
            with self._lock:
                self._polls.remove(poll)

    def _start(self) -> None:
        """A stop is asked for. With the lock held."""
        if not self._started:
            self._started = True
            self._restart()

    def _restart(self) -> None:
        """Gives a step that must end its full time again, if one must. With the lock held."""
        if self._started and not self._over and not self._suspended:
            faulthandler.dump_traceback_later(self._stop_timeout, exit=True, file=_STDERR)

    def wait_for_stop(self, seconds: float) -> None:
        """Returns when a stop is asked for, at the latest after so many seconds."""
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
        """Starts the clock at the first request to stop, and polls."""
        arrivals = self._arrivals[0]
        with _watched(self._launcher) as launcher:
            watched = [arrivals, *launcher]
            while True:
                ready, _, _ = select.select(watched, [], [], _POLL_SECONDS if self._polls else None)
                stopping = False
                if arrivals in ready:
                    if not (arrived := os.read(arrivals, 1)):
                        return
                    stopping = arrived[0] in _STOPPING
                    if stopping:
                        # The handler runs when the main thread is back from a collective; a report is due before that.
                        self.stop = self.stop or signal.Signals(arrived[0]).name
                elif ready:
                    self.stop = self.stop or "the launcher died"
                    watched, stopping = [arrivals], True
                with self._lock:
                    if stopping:
                        self._start()
                    for poll in self._polls:
                        # What a poll asks may be gone as ranks leave: then nothing more is to be heard.
                        with contextlib.suppress(RuntimeError):
                            poll()


@contextlib.contextmanager
def _watched(process: int | None) -> Iterator[list[int]]:
    """A descriptor, in a list, that can be read once the process is dead; none if there is none to watch."""
    if process is None:
        yield []
        return
    try:
        descriptor = os.pidfd_open(process)
    except OSError:  # it is dead already, or this kernel has no such thing
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)
