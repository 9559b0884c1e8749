"""Trackers beside the metrics file, each fed by a thread.

A tracker may be slow, or hang on a network, so the training step only puts values into a queue. One that fails is
reported once on stderr, and gets no more values.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trainer.errors import show
from trainer.telemetry.histograms import Histogram

# The interval of batches of values, in seconds: databases are fast with batches.
FLUSH_SECONDS = 2.0
# Queued calls: one for the numbers of a step, and one for each tensor's histogram. A tracker that keeps up empties the
# queue every FLUSH_SECONDS.
QUEUE_LENGTH = 20_000
# The time for the last values of all trackers at a stop; much less than torchrun's grace period.
CLOSE_SECONDS = 10.0


class Sink(Protocol):
    """One tracker. All methods are called from one thread; `moment` is UTC unix seconds."""

    name: str

    def open(self) -> None:
        """Connect. Called once, before everything else."""

    def settings(self, values: Mapping[str, Any]) -> None:
        """Take the settings of the run."""

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        """Take numbers of a step. A step may have several calls, and may come again after a resume."""

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        """Take a histogram. Trackers without histograms do nothing."""

    def flush(self) -> None:
        """Make all values so far visible."""

    def close(self, good: bool) -> None:
        """End the run. `good`: it succeeded."""


class SinkFeed:
    """Feeds one sink from a thread until `close_all`. No method raises, and only `wait_until` waits."""

    def __init__(self, sink: Sink, *, flush_seconds: float = FLUSH_SECONDS, length: int = QUEUE_LENGTH) -> None:
        self.failed = False
        self._sink = sink
        self._flush_seconds = flush_seconds
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(length)
        self._closing = threading.Event()
        self._slowness_reported = False
        self._run_ended_well = True
        self._thread = threading.Thread(target=self._feed_until_closed, name=f"trainer-{sink.name}", daemon=True)
        self._thread.start()

    def settings(self, values: Mapping[str, Any]) -> None:
        copy = dict(values)
        self._enqueue(lambda: self._sink.settings(copy))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        moment, copy = time.time(), dict(values)
        self._enqueue(lambda: self._sink.scalars(step, moment, copy))

    def histogram(self, step: int, histogram: Histogram) -> None:
        moment = time.time()
        self._enqueue(lambda: self._sink.histogram(step, moment, histogram))

    def begin_closing(self, good: bool) -> None:
        """Let the thread send the queued values and end the tracker's run. Later values are dropped."""
        self._run_ended_well = good
        self._closing.set()

    def wait_until(self, deadline: float) -> bool:
        """Wait for the thread until `deadline` (time.monotonic). Returns whether it has ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def report(self, problem: str) -> None:
        """Print a problem of the sink."""
        show(f"trainer: {self._sink.name} {problem}; training goes on", error=True)

    def _enqueue(self, call: Callable[[], None]) -> None:
        if self.failed or self._closing.is_set():
            return
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            if not self._slowness_reported:
                self._slowness_reported = True
                self.report("is too slow: values are left out there, and are only in the metrics file")

    def _feed_until_closed(self) -> None:
        if self._succeeds(self._sink.open):
            good = self._succeeds(self._send_batches) and self._run_ended_well
            self._succeeds(lambda: self._sink.close(good))

    def _send_batches(self) -> None:
        last = False
        while not last:
            last = self._closing.wait(self._flush_seconds)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()()
            self._sink.flush()

    def _succeeds(self, call: Callable[[], None]) -> bool:
        """Call the sink. Returns False if that failed, and reports the first failure."""
        try:
            call()
        except BaseException as error:  # libraries may raise anything, even SystemExit; training must not end
            if not self.failed:
                self.failed = True
                self.report(f"failed and is left out from now on: {_one_line(error)}")
            return False
        return True


def close_all(feeds: Sequence[SinkFeed], good: bool = True, *, patience: float = CLOSE_SECONDS) -> None:
    """End all trackers' runs concurrently. Reports those that take longer than `patience` seconds."""
    for feed in feeds:
        feed.begin_closing(good)
    deadline = time.monotonic() + patience
    for feed in feeds:
        if not feed.wait_until(deadline) and not feed.failed:
            feed.report(f"did not take its last values within {patience:g} s; they are only in the metrics file")


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
