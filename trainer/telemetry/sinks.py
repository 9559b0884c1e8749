"""Trackers beside the metrics file: their input, their thread, and the handling of a broken one.

A tracker may be slow, or hang on a network: the training step only puts values into a queue. One that fails is named
once on stderr and left out from then on.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainer.errors import show
from trainer.telemetry.histograms import Histogram

# Values are handed over in batches this often, which is what databases are good at.
FLUSH_SECONDS = 2.0
# Hours of steps at a normal pace; reached only when a tracker hangs.
QUEUE_LENGTH = 20_000
# What a stop may spend on the last values, well within the time torchrun gives a rank to end.
CLOSE_SECONDS = 10.0


class Sink(Protocol):
    """One tracker. All methods are called from one thread; `moment` is UTC unix seconds."""

    name: str

    def open(self) -> None:
        """Connects; called once, before everything else."""

    def settings(self, values: Mapping[str, Any]) -> None:
        """What the run was started with."""

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        """Numbers of a step; several calls for one step add up, and steps may come again after a resume."""

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        """One histogram; trackers without them do nothing."""

    def flush(self) -> None:
        """What came so far should become visible."""

    def close(self, good: bool) -> None:
        """The run has ended, well or not."""


class SinkFeed:
    """Feeds one sink from a thread. Nothing here raises or waits, except `close`, which waits for CLOSE_SECONDS."""

    def __init__(self, sink: Sink, *, flush_seconds: float = FLUSH_SECONDS, length: int = QUEUE_LENGTH) -> None:
        self.dropped = 0
        self.failed = False
        self._sink = sink
        self._flush_seconds = flush_seconds
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(length)
        self._closing = threading.Event()
        self._good = True
        self._thread = threading.Thread(target=self._work, name=f"trainer-{sink.name}", daemon=True)
        self._thread.start()

    def settings(self, values: Mapping[str, Any]) -> None:
        kept = dict(values)
        self._put(lambda: self._sink.settings(kept))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        moment, kept = time.time(), dict(values)
        self._put(lambda: self._sink.scalars(step, moment, kept))

    def histogram(self, step: int, histogram: Histogram) -> None:
        moment = time.time()
        self._put(lambda: self._sink.histogram(step, moment, histogram))

    def close(self, good: bool = True, *, patience: float = CLOSE_SECONDS) -> None:
        """Hands over what is left and ends the tracker's run; says so where that takes longer than `patience`."""
        self._good = good
        self._closing.set()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._report(f"did not take its last values within {patience:g} s; they are only in the metrics file")

    def _put(self, call: Callable[[], None]) -> None:
        if self.failed or self._closing.is_set():
            return
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                self._report("is too slow: values are left out there, and are only in the metrics file")

    def _work(self) -> None:
        try:
            self._sink.open()
            last = False
            while not last:
                last = self._closing.wait(self._flush_seconds)
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._queue.get_nowait()()
                self._sink.flush()
            self._sink.close(self._good)
        except Exception as error:  # libraries of others raise anything, and none of it may end the training
            self.failed = True
            self._report(f"failed and is left out from now on: {_one_line(error)}")

    def _report(self, what: str) -> None:
        show(f"trainer: {self._sink.name} {what}; training goes on", error=True)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
