"""Trackers beside the metrics file: their input, their thread, and the handling of a broken one.

A tracker may be slow, or hang on a network: the training step only puts values into a queue. One that fails is named
once on stderr and left out from then on.
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

# Values are handed over in batches this often, which is what databases are good at.
FLUSH_SECONDS = 2.0
# Calls that may wait: one for the numbers of a step, and one for each tensor's histogram. A tracker that keeps up takes
# them all every FLUSH_SECONDS.
QUEUE_LENGTH = 20_000
# What a stop may spend on the last values of all trackers, well within the time torchrun gives a rank to end.
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
    """Feeds one sink from a thread until `close_all`. Nothing here raises, and only `wait_until` waits."""

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
        kept = dict(values)
        self._enqueue(lambda: self._sink.settings(kept))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        moment, kept = time.time(), dict(values)
        self._enqueue(lambda: self._sink.scalars(step, moment, kept))

    def histogram(self, step: int, histogram: Histogram) -> None:
        moment = time.time()
        self._enqueue(lambda: self._sink.histogram(step, moment, histogram))

    def begin_closing(self, good: bool) -> None:
        """Lets the thread hand over what is left and end the tracker's run; what comes later is left out."""
        self._run_ended_well = good
        self._closing.set()

    def wait_until(self, deadline: float) -> bool:
        """Whether the thread has ended; waits for it, at most until `deadline` (time.monotonic)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def report(self, what: str) -> None:
        show(f"trainer: {self._sink.name} {what}; training goes on", error=True)

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
            good = self._succeeds(self._pass_on) and self._run_ended_well
            self._succeeds(lambda: self._sink.close(good))

    def _pass_on(self) -> None:
        last = False
        while not last:
            last = self._closing.wait(self._flush_seconds)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()()
            self._sink.flush()

    def _succeeds(self, call: Callable[[], None]) -> bool:
        """Makes a call of the sink; the first one that fails is reported."""
        try:
            call()
        except BaseException as error:  # libraries of others raise anything, SystemExit too; training must not end
            if not self.failed:
                self.failed = True
                self.report(f"failed and is left out from now on: {_one_line(error)}")
            return False
        return True


def close_all(feeds: Sequence[SinkFeed], good: bool = True, *, patience: float = CLOSE_SECONDS) -> None:
    """Ends the trackers' runs with what is left, all at once; names those that take longer than `patience`, seconds."""
    for feed in feeds:
        feed.begin_closing(good)
    deadline = time.monotonic() + patience
    for feed in feeds:
        if not feed.wait_until(deadline) and not feed.failed:
            feed.report(f"did not take its last values within {patience:g} s; they are only in the metrics file")


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
