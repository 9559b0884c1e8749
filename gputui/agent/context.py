"""Services shared by all parts of the agent, created once by the loop."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from gputui.agent.jobs import Jobs
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.agent.recording.recorder import Recorder
from gputui.agent.recording.write_ahead_log import WriteAheadLog
from gputui.agent.slices import Turn
from gputui.core.config import Workspace
from gputui.metrics.background_reads import ReadContext
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.attempt_processes import ProcessScanner, files_written
from gputui.runs.executors import Executors
from gputui.store.database import open_reader


class AgentContext(Struct, frozen=True):
    """Clocks, store, threads and services of one agent.

    Attributes:
        connection: the only writer of the store; used by the loop's thread alone.
        now: UTC unix seconds.
        monotonic: seconds, for durations.
        wake: starts the next turn of the loop; callable from any thread.
        turn: the time budget of the current turn.
        jobs: threads for slow work.
        recorder: the current state of GPUs and host.
        scanner: finds the processes of attempts.
        executors: run attempts, by the target of their run.
    """

    connection: sqlite3.Connection
    workspace: Workspace
    now: Callable[[], float]
    monotonic: Callable[[], float]
    wake: Callable[[], None]
    turn: Turn
    jobs: Jobs
    write_ahead_log: WriteAheadLog
    recorder: Recorder
    ingest: MetricsIngest
    scanner: ProcessScanner = msgspec.field(default_factory=ProcessScanner)
    executors: Executors = msgspec.field(default_factory=Executors)

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
        jobs = Jobs(wake, monotonic)
        read_context = ReadContext(
            home=workspace.state,
            # A read is never given up: what it returns, however late, is stored.
            start=partial(jobs.start, deadline_seconds=math.inf),
            connect=partial(open_reader, workspace.database),
            run_dir=workspace.run_dir,
            written_by=partial(_written_by, workspace),
        )
        return cls(
            connection=connection,
            workspace=workspace,
            now=now,
            monotonic=monotonic,
            wake=wake,
            turn=Turn(monotonic),
            jobs=jobs,
            write_ahead_log=WriteAheadLog(connection, workspace.database, jobs, monotonic),
            recorder=Recorder(connection, workspace.runs, now),
            ingest=MetricsIngest(connection, redactor_of=partial(redactor_of, workspace), read_context=read_context),
        )


def _written_by(workspace: Workspace, attempts: Sequence[tuple[str, int]]) -> list[set[tuple[int, int]]]:
    return files_written([(workspace.run_dir(run_id), number) for run_id, number in attempts])
