"""Slow work that the loop must not do: threads with a deadline."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

JOBS_AT_ONCE = 8  # more would only compete for the same disks
# A job that takes longer may hang; it does not count towards JOBS_AT_ONCE, so others can start.
PATIENCE_SECONDS = 30.0
# A thread that hangs on an unresponsive file system cannot be killed, so their number is limited.
THREADS_MOST = 32
# How long the result of a job that is asked for is kept.
KEPT_SECONDS = 30.0


class JobTimeoutError(OSError):
    """The job did not end within its deadline; the message contains both."""


class Purpose(StrEnum):
    """The reason for a job whose result is asked for in later turns."""

    NEWEST_LINES = "reading its newest metrics lines"
    SETUP = "looking for what it prints and saves"
    DISK = "looking at its disk"
    PRUNING = "removing its old checkpoints"
    BEFORE_START = "looking at its checkpoints before its start"
    FILES = "listing the files before its start"
    SEARCH = "reading its checkpoints"
    ORPHANS = "looking for orphans"
    LOG_SIZES = "bounding logs"
    RUN_SIZES = "measuring folders of runs"


class JobKey(NamedTuple):
    """The asker of a job: only the same asker takes its result.

    ``attempt`` is the one that it is about, live or next; ``subject`` tells several of one purpose apart.
    """

    purpose: Purpose
    run_id: str | None = None
    attempt: int | None = None
    subject: str | None = None

    @property
    def name(self) -> str:
        """A name for messages."""
        return ": ".join(part for part in (self.run_id, self.purpose, self.subject) if part is not None)


@dataclass(eq=False)
class Job(Generic[T]):
    """Slow work in a daemon thread, created by ``Jobs.start``.

    Attributes:
        name: for messages.
        deadline_seconds: counted from ``begun_at``.
        is_urgent: it waits for no other job.
        begun_at: monotonic; None while the job waits for a thread.
        ended_at: monotonic; infinite until the work is over.
        future: the result of the work, or its error.
    """

    jobs: Jobs
    name: str
    work: Callable[[], T]
    deadline_seconds: float
    is_urgent: bool = False
    begun_at: float | None = None
    ended_at: float = math.inf
    future: Future[T] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, name=self.name, daemon=True)

    @property
    def is_over(self) -> bool:
        """True if the work has returned or raised, or its deadline has passed."""
        self.jobs.poll()
        return self.future.done()

    def result(self) -> T:
        """The value that the work returned.

        Raises the error of the work, JobTimeoutError after the deadline, RuntimeError if the job
        is not over.
        """
        if not self.is_over:
            raise RuntimeError(f"{self.name} is not over")
        return self.future.result()

    def _run(self) -> None:
        # The deadline may have settled it.
        with suppress(InvalidStateError):
            try:
                self.future.set_result(self.work())
            except InvalidStateError:
                raise
            except BaseException as error:
                self.future.set_exception(error)
        self.ended_at = self.jobs.clock()
        self.jobs.has_news = True
        self.jobs.wake()


@dataclass(slots=True)
class Jobs:
    """All jobs of one agent.

    Attributes:
        wake: starts the loop's next turn from any thread.
        clock: returns monotonic seconds.
        at_once: about so many run beside the urgent ones, never more than THREADS_MOST; the others wait in order.
        has_news: a job has ended since this was last reset.
        _asked: jobs whose results somebody asks for in each turn.
        _started: jobs that have a thread, until they are over.
        _waiting: jobs without a thread yet, the next one first.
    """

    wake: Callable[[], None]
    clock: Callable[[], float]
    at_once: int = JOBS_AT_ONCE
    has_news: bool = False
    _asked: dict[JobKey, Job[Any]] = field(default_factory=dict)
    _started: list[Job[Any]] = field(default_factory=list)
    _waiting: deque[Job[Any]] = field(default_factory=deque)

    def start(self, name: str, work: Callable[[], T], *, deadline_seconds: float, is_urgent: bool = False) -> Job[T]:
        """Run ``work`` in a thread, now or after another job; an urgent one before all others."""
        job = Job(self, name, work, deadline_seconds, is_urgent)
        if is_urgent:
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)
        self.poll()
        return job

    def running(self) -> list[str]:
        """The names of the jobs that run, oldest first."""
        return [job.name for job in self._started if not job.future.done()]

    def ask(self, key: JobKey, work: Callable[[], T], *, deadline_seconds: float) -> Job[T] | None:
        """Start the job of this key unless it runs, and return it once it is over; None before.

        A job that is returned is forgotten, and so is one whose result was not asked for within KEPT_SECONDS: the
        next call starts another.
        """
        self.poll()
        job = self._asked.get(key)
        if job is None:
            self._asked[key] = self.start(key.name, work, deadline_seconds=deadline_seconds)
        if job is not None and job.future.done():
            return self._asked.pop(key)
        return None

    def drop(self, run_id: str, attempt: int) -> None:
        """Forget the jobs that were asked for an attempt that is over; nobody gets their results."""
        for key in [key for key in self._asked if (key.run_id, key.attempt) == (run_id, attempt)]:
            del self._asked[key]

    @property
    def is_busy(self) -> bool:
        self.poll()
        return bool(self._waiting) or any(not job.future.done() for job in self._started)

    def poll(self) -> None:
        """Fail jobs past their deadline and start waiting ones. Cheap; called in each turn."""
        now = self.clock()
        young = 0
        for job in self._started:
            age = now - (job.begun_at or 0.0)
            if age > job.deadline_seconds:
                text = f"{job.name}: no answer within {job.deadline_seconds:.0f} s"
                with suppress(InvalidStateError):
                    job.future.set_exception(JobTimeoutError(text))
            young += age < PATIENCE_SECONDS and not job.future.done() and not job.is_urgent
        self._started = [job for job in self._started if job.thread.is_alive()]
        for key, job in list(self._asked.items()):
            if now - job.ended_at > KEPT_SECONDS:
                del self._asked[key]
        while self._waiting and len(self._started) < THREADS_MOST:
            job = self._waiting[0]
            if young >= self.at_once and not job.is_urgent:
                return
            try:
                job.thread.start()
            except RuntimeError:
                return  # the system has no thread left: tried again in the next turn
            job.begun_at = now
            self._started.append(self._waiting.popleft())
            young += not job.is_urgent
