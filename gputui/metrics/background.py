"""Reads of a source in another thread: its file system may not answer, or its file is parsed whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from gputui.metrics.batch import Batch
from gputui.metrics.history import HistoryReader
from gputui.metrics.reader import FileReader
from gputui.metrics.source_state import Boundary, SourceState

# Between two reads of a source.
INTERVAL_SECONDS = 0.5
# A file system that has not answered for this long is reported.
ANSWER_SECONDS = 10.0


class BackgroundReader:
    """Reads a source with ``reader`` in the threads of ``start``, which begins work by a name for
    the log. A read begins in one call, and a later call returns its batch."""

    def __init__(
        self,
        reader: FileReader | HistoryReader,
        start: Callable[[str, Callable[[], Any]], Future[Any]],
        pattern: str,
    ) -> None:
        self._reader = reader
        self._start = start
        self._pattern = pattern
        self._job: Future[Batch | None] | None = None
        self._is_final = False
        self._is_over = False
        self._begun_at = self._due_at = 0.0

    def close(self) -> None:
        """Close the files. One that a thread still reads is closed with its last reference."""
        if self._job is None:
            self._reader.close()

    def read(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool = False) -> Batch | None:
        """Take the batch of a read that has ended, and begin the next read if there is none.

        Args:
            ended: As of `FileReader.read`. A read that began with it is only returned to a caller that says so too;
                after one that found nothing no other begins, since several sources could await each other's forever.

        Returns:
            None while a read goes on, or if it found nothing.

        Raises:
            OSError: The file could not be read.
        """
        job = self._job
        if job is None:
            if not (ended and self._is_over):
                self.begin(state, boundaries, ended=ended)
            return None
        if not job.done() or (self._is_final and not ended):
            return None
        self._job = None
        self._due_at = time.monotonic() + INTERVAL_SECONDS
        self._is_over = self._is_final
        batch = job.result()
        self._is_over = batch is None and self._is_final
        if batch is None and ended and not self._is_final:
            self.begin(state, boundaries, ended=ended)
        return batch

    def begin(self, state: SourceState, boundaries: Sequence[Boundary], *, ended: bool, is_due: bool = False) -> None:
        """Begin a read if it is due, as at the end of an attempt."""
        now = time.monotonic()
        if now >= self._due_at or ended or is_due:
            read = partial(self._reader.read, state, tuple(boundaries), ended=ended)
            self._job = self._start(f"reading {self._pattern}", read)
            self._begun_at = now
            self._is_final = ended

    @property
    def is_reading(self) -> bool:
        return self._job is not None

    @property
    def has_answer(self) -> bool:
        return self._job is not None and self._job.done()

    @property
    def is_unanswered(self) -> bool:
        is_late = time.monotonic() - self._begun_at > ANSWER_SECONDS
        return self._job is not None and not self._job.done() and is_late
