"""Services shared by all parts of the agent, created once by the loop: clocks, store and jobs."""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import Struct

from gputui.agent.janitor import Janitor, Tidying, bound_log
from gputui.agent.jobs import Jobs
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.sources import ReadContext
from gputui.runs.executors import Executors
from gputui.runs.processes import ProcessScanner
from gputui.store.database import open_reader
from gputui.store.events import EventKind, NewEvent, Severity, add_event

# The parts of a turn that serve each run stop after this.
TURN_SECONDS = 0.016


@dataclass(slots=True)
class TurnBudget:
    """The time of one turn of the loop that all its parts share for their work per run.

    Each part serves at least one run in every turn, so none starves. ``clock`` returns monotonic seconds.
    """

    clock: Callable[[], float]
    _ends_at: float = math.inf
    _postponed: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self._ends_at = self.clock() + TURN_SECONDS

    def is_spent(self) -> bool:
        """Return whether the remaining work has to wait for the next turn."""
        return self.clock() >= self._ends_at

    def postpones(self, part: str) -> bool:
        """Return whether a part that does not divide its work waits for the next turn: if this one
        is spent, and the part has not waited already."""
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
        budget: the time that is left of this turn.
        jobs: slow work in threads.
        recorder: the current state of GPUs and host.
        janitor: tidies the store beside the loop.
        ingest: reads the metrics that runs write.
        scanner: finds the processes of attempts on this machine.
        executors: the programs that can run an attempt, by the kind of target.
    """

    connection: sqlite3.Connection
    workspace: Workspace
    now: Callable[[], float]
    monotonic: Callable[[], float]
    wake: Callable[[], None]
    budget: TurnBudget
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
    ) -> None:
        """Add an event of a run or of the agent itself, now. Raises sqlite3.Error."""
        event = NewEvent(kind, text, key=key, severity=severity, run_id=run_id, attempt=attempt)
        add_event(self.connection, event, now=self.now())

    def note_about(
        self, subject: str, kind: EventKind, text: str, *, severity: Severity = "warning", key: str | None = None
    ) -> None:
        """Add an event about something else than a run, now; ``subject`` names it for people. Raises
        sqlite3.Error."""
        event = NewEvent(kind, text, key=key, severity=severity, subject=subject)
        add_event(self.connection, event, now=self.now())

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
        """The context of the agent that serves ``workspace``; ``interval_seconds`` is that of samples."""
        bound_log(connection)
        jobs = Jobs(wake, monotonic)
        recorder = Recorder(connection, workspace.runs, now)
        read_context = ReadContext(
            # A read is never given up: what it returns, however late, is stored.
            start=lambda name, work: jobs.start(name, work, deadline_seconds=math.inf).future,
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
            budget=TurnBudget(monotonic),
            jobs=jobs,
            recorder=recorder,
            janitor=Janitor(Tidying(workspace, recorder, interval_seconds, now)),
            ingest=MetricsIngest(connection, redactor_of=redactor, read_context=read_context),
        )


log = logging.getLogger(__name__)
