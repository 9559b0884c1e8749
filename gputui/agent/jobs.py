"""Jobs: threads for slow work that the loop must not do (checkpoints, network file systems, deletion of folders).

Use from the loop's thread only:

    job = context.jobs.start(f"examine {run_id}", partial(examine, task), deadline_seconds=600.0)
    ...                            # the end of the job wakes the loop
    if job.is_over:
        findings = job.result()    # raises the error of the work, or JobTimeoutError

The work receives all it needs as arguments and returns its result; it accesses neither the store nor the agent's
objects.
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
# A job that takes longer may hang; it does not count towards JOBS_AT_ONCE, so others can start.
PATIENCE_SECONDS = 30.0
# A thread that hangs on an unresponsive file system cannot be killed, so their number is limited.
THREADS_MOST = 32


class JobTimeoutError(OSError):
    """The job did not end within its deadline; the message contains both."""


class Job(Generic[T]):
    """Slow work in a daemon thread, created by ``Jobs.start``. ``deadline_seconds`` counts from ``begun_at`` (monotonic
    seconds), which is None while the job waits for a thread."""

    def __init__(self, jobs: Jobs, name: str, work: Callable[[], T], deadline_seconds: float) -> None:
        self.name = name
        self.deadline_seconds = deadline_seconds
        self.begun_at: float | None = None
        self._jobs = jobs
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        # Set last by the thread, after the value or the error.
        self._has_ended = threading.Event()
        self._is_abandoned = False

    @property
    def is_over(self) -> bool:
        """Whether the work has returned or raised, or its deadline has passed."""
        self._jobs.turn()
        return self._is_settled

    def result(self) -> T:
        """The value that the work returned.

        Raises the error of the work, JobTimeoutError after the deadline, RuntimeError if the job is not over.
        """
        if not self.is_over:
            raise RuntimeError(f"{self.name} is not over")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] # the thread has returned: it is a T

    @property
    def _is_settled(self) -> bool:
        return self._is_abandoned or self._has_ended.is_set()

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
    """All jobs of one agent. About ``at_once`` of them run, never more than THREADS_MOST; the others wait in order.
    ``wake`` starts the loop's next turn from any thread; ``clock`` returns monotonic seconds."""

    wake: Callable[[], None]
    clock: Callable[[], float]
    at_once: int = JOBS_AT_ONCE
    _running: list[Job[Any]] = field(default_factory=list)
    _waiting: deque[Job[Any]] = field(default_factory=deque)
    _abandoned: list[Job[Any]] = field(default_factory=list)
    # The system had no thread left; logged once.
    _is_short: bool = False

    def start(self, name: str, work: Callable[[], T], *, deadline_seconds: float) -> Job[T]:
        """Run ``work`` in a thread, now or after another job."""
        job = Job(self, name, work, deadline_seconds)
        self._waiting.append(job)
        self.turn()
        return job

    @property
    def is_busy(self) -> bool:
        """Whether any job runs or waits."""
        self.turn()
        return bool(self._running or self._waiting)

    def turn(self) -> None:
        """Fail jobs past their deadline and start waiting ones. Cheap; called in each turn of the loop."""
        now = self.clock()
        for job in [job for job in self._running if not job._has_ended.is_set()]:
            if job.begun_at is not None and now - job.begun_at > job.deadline_seconds:
                log.warning("%s does not end; its thread is abandoned", job.name)
                job._is_abandoned = True
                job._error = JobTimeoutError(f"{job.name}: no answer within {job.deadline_seconds:.0f} s")
                self._abandoned.append(job)
        self._running = [job for job in self._running if not job._is_settled]
        self._abandoned = [job for job in self._abandoned if not job._has_ended.is_set()]
        while self._waiting:
            young = sum(job.begun_at is not None and now - job.begun_at < PATIENCE_SECONDS for job in self._running)
            if young >= self.at_once or len(self._running) + len(self._abandoned) >= THREADS_MOST:
                return
            job = self._waiting[0]
            try:
                threading.Thread(target=job._run, name=job.name, daemon=True).start()
            except RuntimeError as error:
                # The system has no thread left: tried again in the next turn.
                if not self._is_short:
                    log.warning("%s cannot begin: %s", job.name, error)
                self._is_short = True
                return
            job.begun_at = now
            self._is_short = False
            self._running.append(self._waiting.popleft())
