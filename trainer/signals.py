"""Signals as requests that the loop looks at between two steps.

SIGTERM and SIGINT ask to stop, SIGUSR1 asks for a checkpoint. A second SIGINT a second or more after the first one ends
at once, as a person who presses ctrl+c twice expects. SIGTERM may come any number of times: a launcher forwards it and
a supervisor may send it as well.
"""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Signals:
    """Use as a context manager in the main thread; the former handlers come back at the end."""

    def __init__(self) -> None:
        self.stop: str = ""  # the name of the signal that asked to stop
        self.save = False
        self._interrupted_at = 0.0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        for number in _HANDLED:
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

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
