"""Signals as requests that the loop looks at between two steps.

SIGTERM and SIGINT ask to stop, SIGUSR1 asks for a checkpoint. A second SIGINT a second or more after the first one ends
at once, as a person who presses ctrl+c twice expects. SIGTERM may come any number of times: a launcher forwards it and
a supervisor may send it as well.

Where a launcher started the ranks, its death asks to stop as well: nobody looks after them then, and whoever starts
the run again would have it twice.

A rank that hangs never looks. So a stop also starts a clock: where the step does not end in time, the stacks of all
threads go to stderr and the process ends with exit code 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_STDERR = 2


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
        faulthandler.cancel_dump_traceback_later()

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
        """Starts the clock at the first request to stop."""
        arrivals, started = self._arrivals[0], False
        with _watched(self._launcher) as launcher:
            watched = [arrivals, *launcher]
            while True:
                ready, _, _ = select.select(watched, [], [])
                if arrivals in ready:
                    if not (arrived := os.read(arrivals, 1)):
                        return
                    stopping = arrived[0] in _STOPPING
                else:
                    self.stop = self.stop or "the launcher died"
                    watched, stopping = [arrivals], True
                if stopping and not started:
                    started = True
                    faulthandler.dump_traceback_later(self._stop_timeout, exit=True, file=_STDERR)


@contextlib.contextmanager
def _watched(process: int | None) -> Iterator[list[int]]:
    """A descriptor, in a list, that can be read once the process is dead; none where there is none to watch."""
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
