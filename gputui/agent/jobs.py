"""Jobs: threads for slow work (checkpoints, network file systems, deletes of folders), which the loop never does.

How to use it, always from the loop's thread:

    job = supervisor.jobs.start(f"examine {run_id}", partial(examine, task), deadline_seconds=600.0)
    ...                       # in a later turn of the loop, which the end of the job wakes
    if job.is_over:
        findings = job.result()    # raises what the work raised, or JobTimeoutError

The work gets all it needs as arguments and returns what it found; it touches neither the store nor the agent's objects.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

JOBS_AT_ONCE = 8
# One that takes longer may hang: it does not keep others from beginning.
PATIENCE_SECONDS = 30.0
# A thread that hangs on a file system which does not answer cannot be ended. With so many, nothing is added.
THREADS_MOST = 32


class JobTimeoutError(OSError):
    """The job did not end within its deadline; the text names it, and how long it was given."""


class Job(Generic[T]):
    """One piece of slow work in a daemon thread. ``deadline_seconds`` counts from ``begun_at`` (monotonic
    seconds), which is None while the job waits for others to end. Made by ``Jobs.start`` alone."""

    def __init__(self, jobs: Jobs, name: str, work: Callable[[], T], deadline_seconds: float) -> None:
        self.name = name
        self.deadline_seconds = deadline_seconds
        self.begun_at: float | None = None
        self._jobs = jobs
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        # Set last by the thread: whoever sees it sees the value or the error too.
        self._has_ended = threading.Event()
        self._is_abandoned = False

    @property
    def is_over(self) -> bool:
        """Whether there is a result: a value, an error, or that the deadline has passed."""
        self._jobs.turn()
        return self._is_settled

    def result(self) -> T:
        """What the work returned; only when the job is over.

        Raises what the work raised, JobTimeoutError after the deadline, RuntimeError where the job is not over.
        """
        if not self.is_over:
            raise RuntimeError(f"{self.name} is not over")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] # the thread has returned: it is a T

    @property
    def _is_settled(self) -> bool:
        return self._is_abandoned or self._has_ended.is_set()

    def _begin(self, now: float) -> None:
        """Raises RuntimeError if the system has no thread left."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        self.begun_at = now

    def _abandon(self, error: JobTimeoutError) -> None:
        """From here on, what the thread still does is of no consequence."""
        self._is_abandoned = True
        self._error = error

    def _run(self) -> None:
        try:
            value = self._work()
        except BaseException as error:
            if not self._is_abandoned:
                self._error = error
        else:
            self._value = value
        self._has_ended.set()
        self._jobs.wake()


@dataclass(slots=True)
class Jobs:
    """All jobs of one agent: about ``at_once`` threads work, never more than THREADS_MOST; the others wait in order.
    ``wake`` makes the loop turn, from any thread; ``clock`` gives monotonic seconds."""

    wake: Callable[[], None]
    clock: Callable[[], float]
    at_once: int = JOBS_AT_ONCE
    _running: list[Job[Any]] = field(default_factory=list)
    _waiting: deque[Job[Any]] = field(default_factory=deque)
    _abandoned: list[Job[Any]] = field(default_factory=list)
    # No thread was left; reported once.
    _is_short: bool = False

    def start(self, name: str, work: Callable[[], T], *, deadline_seconds: float) -> Job[T]:
        """Do ``work`` in a thread, now or when another job has ended."""
        job = Job(self, name, work, deadline_seconds)
        self._waiting.append(job)
        self.turn()
        return job

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way, or waits for its thread."""
        self.turn()
        return bool(self._running or self._waiting)

    def turn(self) -> None:
        """Fail what is past its deadline, and begin what waits. Cheap; called in each turn of the loop."""
        now = self.clock()
        for job in [job for job in self._running if not job._has_ended.is_set()]:
            if job.begun_at is not None and now - job.begun_at > job.deadline_seconds:
                log.warning("%s does not end; its thread is abandoned", job.name)
                job._abandon(JobTimeoutError(f"{job.name}: no answer within {job.deadline_seconds:.0f} s"))
                self._abandoned.append(job)
        self._running = [job for job in self._running if not job._is_settled]
        self._abandoned = [job for job in self._abandoned if not job._has_ended.is_set()]
        while self._waiting and self._has_place(now):
            job = self._waiting[0]
            try:
                job._begin(now)
            except RuntimeError as error:
                # Tried again in the next turn: threads of others end.
                if not self._is_short:
                    log.warning("%s cannot begin: %s", job.name, error)
                self._is_short = True
                return
            self._is_short = False
            self._running.append(self._waiting.popleft())

    def _has_place(self, now: float) -> bool:
        young = sum(job.begun_at is not None and now - job.begun_at < PATIENCE_SECONDS for job in self._running)
        return young < self.at_once and len(self._running) + len(self._abandoned) < THREADS_MOST
