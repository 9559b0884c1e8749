"""What all parts of the agent share; made once by the loop and passed on whole."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gputui.agent.jobs import Jobs
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.agent.recording.recorder import Recorder
from gputui.agent.recording.write_ahead_log import WriteAheadLog
from gputui.agent.slices import Turn
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.attempt_processes import ProcessScanner
from gputui.runs.executors import Executors


@dataclass(frozen=True, slots=True)
class AgentContext:
    """``connection`` is the writer of the store and belongs to the loop's thread; ``now`` gives UTC unix seconds,
    ``monotonic`` seconds for durations; ``wake`` makes the loop turn, from any thread; ``turn`` is the time that one
    has; ``jobs`` does what is slow. ``log`` is what ``connection`` wrote last; ``recorder`` knows the GPUs and the host
    as they are now, ``ingest`` stores metrics, ``scanner`` finds the processes of attempts, ``executors`` run them,
    each where its run's target says."""

    connection: sqlite3.Connection
    workspace: Workspace
    now: Callable[[], float]
    monotonic: Callable[[], float]
    wake: Callable[[], None]
    turn: Turn
    jobs: Jobs
    log: WriteAheadLog
    recorder: Recorder
    ingest: MetricsIngest
    scanner: ProcessScanner = field(default_factory=ProcessScanner)
    executors: Executors = field(default_factory=Executors)

    @classmethod
    def of(
        cls,
        connection: sqlite3.Connection,
        workspace: Workspace,
        *,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> AgentContext:
        """The context of the agent that serves ``workspace``."""
        jobs, recorder = Jobs(wake, monotonic), Recorder(connection, workspace.runs, now)
        ingest = MetricsIngest(connection, redactor_of=partial(redactor_of, workspace))
        log = WriteAheadLog(connection, workspace.database, jobs, monotonic)
        return cls(connection, workspace, now, monotonic, wake, Turn(monotonic), jobs, log, recorder, ingest)
