"""Services shared by all parts of the agent, created once by the loop: clocks, store, jobs (threads
for slow work that the loop must not do), and the barrier that keeps an unexpected error to one run
or one part of a turn.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from gputui.agent.janitor import Janitor, bound_log
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.sources import ReadContext
from gputui.runs.executors import Executors
from gputui.runs.processes import ProcessScanner
from gputui.store.database import is_locked, open_reader
from gputui.store.events import EventKind, Severity, add_event

T = TypeVar("T")

JOBS_AT_ONCE = 8
# A job that takes longer may hang; it does not count towards JOBS_AT_ONCE, so others can start.
PATIENCE_SECONDS = 30.0
# A thread that hangs on an unresponsive file system cannot be killed, so their number is limited.
THREADS_MOST = 32
# How long the result of a job that is asked for is kept.
KEPT_SECONDS = 30.0


class JobTimeoutError(OSError):
    """The job did not end within its deadline; the message contains both."""


@dataclass(eq=False)
class Job(Generic[T]):
    """Slow work in a daemon thread, created by ``Jobs.start``. ``deadline_seconds`` counts from
    ``begun_at`` (monotonic seconds), which is None while the job waits for a thread."""

    jobs: Jobs
    name: str
    work: Callable[[], T]
    deadline_seconds: float
    begun_at: float | None = None
    ended_at: float = math.inf
    future: Future[T] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, name=self.name, daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether the work has returned or raised, or its deadline has passed."""
        self.jobs.turn()
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
    """All jobs of one agent. About ``at_once`` of them run, never more than THREADS_MOST; the
    others wait in order. ``wake`` starts the loop's next turn from any thread; ``clock`` returns
    monotonic seconds."""

    wake: Callable[[], None]
    clock: Callable[[], float]
    at_once: int = JOBS_AT_ONCE
    has_news: bool = False
    """A job has ended since this was last reset."""
    _asked: dict[str, Job[Any]] = field(default_factory=dict)
    _started: list[Job[Any]] = field(default_factory=list)
    _waiting: deque[Job[Any]] = field(default_factory=deque)

    def start(self, name: str, work: Callable[[], T], *, deadline_seconds: float) -> Job[T]:
        """Run ``work`` in a thread, now or after another job."""
        job = Job(self, name, work, deadline_seconds)
        self._waiting.append(job)
        self.turn()
        return job

    def ask(self, name: str, work: Callable[[], T], *, deadline_seconds: float) -> Job[T] | None:
        """The job of this name once it is over, which is then forgotten; None before. It is
        started if there is none, or if its result was not asked for within KEPT_SECONDS."""
        self.turn()
        job = self._asked.get(name)
        if job is None:
            self._asked[name] = self.start(name, work, deadline_seconds=deadline_seconds)
        return self._asked.pop(name) if job is not None and job.future.done() else None

    @property
    def is_busy(self) -> bool:
        """Whether any job runs or waits."""
        self.turn()
        return bool(self._waiting) or any(not job.future.done() for job in self._started)

    def turn(self) -> None:
        """Fail jobs past their deadline and start waiting ones. Cheap; called in each turn."""
        now = self.clock()
        young = 0
        for job in self._started:
            age = now - (job.begun_at or 0.0)
            if age > job.deadline_seconds:
                text = f"{job.name}: no answer within {job.deadline_seconds:.0f} s"
                with suppress(InvalidStateError):
                    job.future.set_exception(JobTimeoutError(text))
            young += age < PATIENCE_SECONDS and not job.future.done()
        self._started = [job for job in self._started if job.thread.is_alive()]
        for name, job in list(self._asked.items()):
            if now - job.ended_at > KEPT_SECONDS:
                del self._asked[name]
        while self._waiting and young < self.at_once and len(self._started) < THREADS_MOST:
            job = self._waiting[0]
            try:
                job.thread.start()
            except RuntimeError:
                return  # the system has no thread left: tried again in the next turn
            job.begun_at = now
            self._started.append(self._waiting.popleft())
            young += 1


# The parts of a turn that serve each run stop after this.
TURN_SECONDS = 0.016


@dataclass(slots=True)
class Turn:
    """The time that all parts of a turn share for their work per run. Each part serves at least
    one run in every turn, so none starves. ``clock`` returns monotonic seconds."""

    clock: Callable[[], float]
    _ends_at: float = math.inf
    _postponed: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self._ends_at = self.clock() + TURN_SECONDS

    def is_spent(self) -> bool:
        """Whether the remaining work has to wait for the next turn."""
        return self.clock() >= self._ends_at

    def postpones(self, part: str) -> bool:
        """Whether a part that does not divide its work waits for the next turn: if this one is
        spent, and the part has not waited already."""
        if part in self._postponed or not self.is_spent():
            self._postponed.discard(part)
            return False
        self._postponed.add(part)
        return True


class AgentContext(Struct, frozen=True):
    """Clocks, store, threads and services of one agent.

    Attributes:
        connection: the main writer of the store; used by the loop's thread alone.
        now: UTC unix seconds.
        monotonic: seconds, for durations.
        wake: starts the next turn of the loop; callable from any thread.
        recorder: the current state of GPUs and host.
        janitor: tidies the store beside the loop.
    """

    connection: sqlite3.Connection
    workspace: Workspace
    now: Callable[[], float]
    monotonic: Callable[[], float]
    wake: Callable[[], None]
    turn: Turn
    jobs: Jobs
    recorder: Recorder
    janitor: Janitor
    ingest: MetricsIngest
    scanner: ProcessScanner = msgspec.field(default_factory=ProcessScanner)
    executors: Executors = msgspec.field(default_factory=Executors)

    def note(
        self,
        kind: EventKind,
        text: str,
        run_id: str | None = None,
        attempt: int | None = None,
        *,
        severity: Severity = "info",
        key: str | None = None,
        subject: str | None = None,
        at: float | None = None,
    ) -> None:
        """Add an event, now or at another time (UTC unix seconds). Raises sqlite3.Error."""
        add_event(
            self.connection,
            kind,
            text,
            now=self.now() if at is None else at,
            key=key,
            severity=severity,
            subject=subject,
            run_id=run_id,
            attempt=attempt,
        )

    @classmethod
    def of(
        cls,
        connection: sqlite3.Connection,
        workspace: Workspace,
        *,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        interval_seconds: float = 1.0,
    ) -> AgentContext:
        """The context of the agent that serves ``workspace``."""
        bound_log(connection)
        jobs = Jobs(wake, monotonic)
        recorder = Recorder(connection, workspace.runs, now)
        read_context = ReadContext(
            # A read is never given up: what it returns, however late, is stored.
            start=partial(jobs.start, deadline_seconds=math.inf),
            connect=partial(open_reader, workspace.database),
            run_dir=workspace.run_dir,
        )
        redactor = partial(redactor_of, workspace)
        return cls(
            connection=connection,
            workspace=workspace,
            now=now,
            monotonic=monotonic,
            wake=wake,
            turn=Turn(monotonic),
            jobs=jobs,
            recorder=recorder,
            janitor=Janitor(workspace, recorder, interval_seconds, now),
            ingest=MetricsIngest(connection, redactor_of=redactor, read_context=read_context),
        )


log = logging.getLogger(__name__)


# How long a run is skipped after an unexpected error.
TROUBLE_SECONDS = 30.0
# A part of the loop's turn serves all runs, so it is tried again sooner.
PART_SECONDS = 10.0

# People notice a longer turn: keys are answered late, and samples arrive in bursts.
LONG_TURN_SECONDS = 0.05
_LOGGED_SECONDS = 60.0

# Errors of single rows. Any other sqlite3.Error concerns the whole database.
_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


@dataclass(slots=True)
class Trouble:
    """An unexpected error: the run or part is skipped until ``until`` (monotonic). ``reported`` is
    the reported text, None after a success."""

    until: float = float("-inf")
    reported: str | None = None


@dataclass(slots=True)
class Parts:
    """Runs and times the parts of a turn. Each fails alone, and so does each run: it is skipped for
    a while after an unexpected error, then tried again.

    ``longest_seconds`` and ``longest_part`` describe this agent's longest turn. Of the current
    turn, ``unwritable`` is why a write failed, and ``is_one_resting`` says whether a part was
    skipped.
    """

    context: AgentContext
    unwritable: str | None = None
    is_one_resting: bool = False
    longest_seconds: float = 0.0
    longest_part: str = ""
    troubles: dict[tuple[str, bool], Trouble] = field(default_factory=lambda: defaultdict(Trouble))
    _took: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _logged_at: float = 0.0
    _cpu_at: float = 0.0

    def is_resting(self, name: str, *, is_run: bool = True) -> bool:
        """Whether a run (or part) is skipped for now."""
        return self.context.monotonic() < self.troubles[name, is_run].until

    @contextmanager
    def around(self, name: str, *, is_run: bool = True) -> Iterator[None]:
        """Catch unexpected errors in the handling of a run, or in a part. Repetitions of the same
        error write one event. Raises sqlite3.Error if the database itself fails."""
        trouble = self.troubles[name, is_run]
        try:
            yield
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _ROW_ERRORS):
                raise
            what = "cannot be looked after" if is_run else f"{name} failed in the agent"
            log.error("%s: %s", name, what, exc_info=error)
            roll_back(self.context.connection)
            seconds = TROUBLE_SECONDS if is_run else PART_SECONDS
            trouble.until = self.context.monotonic() + seconds
            text = f"{error}" or type(error).__name__
            if trouble.reported != text:
                again = f"{what}: {text}; trying again every {seconds:.0f} s, see agent.log"
                run_id = name if is_run else None
                self.context.note("agent_error", again, run_id, key=name, severity="error")
                trouble.reported = text
        else:
            trouble.reported = None

    def do(self, name: str, act: Callable[[], T]) -> T | None:
        """Return the result of ``act``; None if it fails, or is skipped after a failure. A passing
        error of the database (a full disk) is stored in ``unwritable``. Raises sqlite3.Error if
        the database is locked or damaged."""
        if self.is_resting(name, is_run=False):
            self.is_one_resting = True
            return None
        began = self.context.monotonic()
        try:
            with self.around(name, is_run=False):
                return act()
        except sqlite3.OperationalError as error:
            roll_back(self.context.connection)
            if is_locked(error):
                raise
            self.unwritable = str(error)
        finally:
            self._took[name] += self.context.monotonic() - began
        return None

    def begin_turn(self) -> None:
        """Reset the state of the turn."""
        self.unwritable, self.is_one_resting = None, False
        self._cpu_at = time.thread_time()
        self._took.clear()

    def end_turn(self) -> None:
        """Keep the longest turn, and log turns that took too long, at most one a minute."""
        total = sum(self._took.values())
        is_longest, now = total > self.longest_seconds, self.context.monotonic()
        name = max(self._took, key=lambda part: self._took[part], default="")
        if is_longest:
            self.longest_seconds, self.longest_part = total, name
        if total > LONG_TURN_SECONDS and (is_longest or now >= self._logged_at):
            self._logged_at = now + _LOGGED_SECONDS
            # Much less processor time than wall time points to the disk or to other processes.
            cpu = time.thread_time() - self._cpu_at
            words = "a turn took %.0f ms (%.0f ms of processor time), %s %.0f ms of it"
            log.info(words, total * 1e3, cpu * 1e3, name, self._took[name] * 1e3)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that a failed operation left open."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
