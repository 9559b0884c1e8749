"""A live attempt under watch: the feed of its stored lines, and snapshots of its processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection

from gputui.agent.health.setup_checks import SetupChecks
from gputui.agent.jobs import Job
from gputui.recovery.watch.attempt import AttemptWatch, ProcessSnapshot
from gputui.recovery.watch.rules import Observation
from gputui.recovery.watch.silence import StepPace, StepProgress
from gputui.runs.process_readings import ProcessReading, read_process
from gputui.runs.process_sockets import Socket, outside, read_sockets, sockets_of
from gputui.runs.processes import AttemptProcess
from gputui.store.attempts import Attempt
from gputui.store.database import one_moment, open_reader
from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.stored_lines import FilePosition
from gputui.store.metrics.watched import earlier_starts, ended_for_hang, newest_lines

# Only the newest lines are read, so that a check is short even if lines arrive faster than a
# thousand a second.
LINES_PER_LOOK = 2000
HISTORY_LINES = 5000


@dataclass(slots=True)
class WatchedAttempt:
    """A live attempt under watch. Times are monotonic seconds."""

    watch: AttemptWatch
    cursor: dict[int, FilePosition] = field(default_factory=dict)
    # Observations of stored lines that are not acted on yet.
    pending: list[Observation] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    # The observation for which it is being ended, and the job that dumps its stacks before.
    ending: str | None = None
    stack_dump: Job[tuple[int | None, str] | None] | None = None
    memory_at: float = -math.inf
    setup: SetupChecks = field(default_factory=SetupChecks)


def begin(connection: Connection, record: Attempt, clock: float, wall: float) -> WatchedAttempt:
    """The state derived from stored lines, so that a new agent does not start from nothing."""
    run_id = record.run_id
    number = record.number
    pace = StepPace()
    for seconds in earlier_starts(connection, run_id, number):
        pace.add_start(seconds)
    is_patient = ended_for_hang(connection, run_id, number)
    watch = AttemptWatch(record, StepProgress(pace), clock, is_patient=is_patient)
    watch.begin_metrics(metric_roles(connection, run_id))
    lines, cursor = newest_lines(connection, run_id, {}, HISTORY_LINES)
    for earlier in sorted({line.attempt for line in lines if line.attempt < number}):
        StepProgress(pace).add(line for line in lines if line.attempt == earlier)
    pending = watch.take(lines, clock)
    watch.had_lines = bool(lines)
    begun = record.started_at or record.created_at
    newest = watch.progress.at if watch.progress.lines else begun
    # A script's clock may not count from 1970; such a time says nothing about the silence so far.
    if newest is not None and newest >= begun:
        watch.progress_at = clock - max(0.0, wall - newest)
    stored_times = [line.stored_at for line in lines if line.attempt == number]
    arrived = [at for at in stored_times if at is not None]
    if arrived:
        watch.lines_at = clock - max(0.0, wall - arrived[-1])
    return WatchedAttempt(watch, cursor, pending)


def read_history(database: Path, record: Attempt, clock: float, wall: float) -> WatchedAttempt:
    """`begin` with a separate connection. Raises StoreError and sqlite3.Error."""
    with closing(open_reader(database)) as connection, one_moment(connection):
        return begin(connection, record, clock, wall)


def take_snapshot(processes: Sequence[AttemptProcess], at: float, *, with_connections: bool = False) -> ProcessSnapshot:
    """Read an attempt's processes, ``with_connections`` also the connections beyond it."""
    ranks: dict[int | None, list[ProcessReading]] = {}
    others: list[ProcessReading] = []
    size = 1
    for process in processes:
        reading = read_process(process.identity)
        if reading is None:
            continue
        if process.rank is None:
            others.append(reading)
        else:
            ranks.setdefault(process.rank, []).append(reading)
            size = max(size, process.rank + 1, process.local_world_size or 1)
    is_closed = False
    moved = {}
    if with_connections:
        all_sockets = read_sockets()
        sockets_by_process = {process: sockets_of(process.pid, all_sockets) for process in processes}
        attempt_sockets = [socket for sockets in sockets_by_process.values() for socket in sockets or ()]
        members = [sockets for process, sockets in sockets_by_process.items() if process.rank is not None or not ranks]
        is_closed = not any(sockets is None or outside(sockets, attempt_sockets) for sockets in members)
        moved = _moved_bytes(sockets_by_process.values(), attempt_sockets)
    if not ranks and others:
        return ProcessSnapshot(at, {None: others}, [], 1, is_closed, moved)
    return ProcessSnapshot(at, ranks, others, size, is_closed, moved)


def _moved_bytes(
    sockets_by_process: Iterable[Sequence[Socket] | None], attempt_sockets: Sequence[Socket]
) -> dict[int, int]:
    """The bytes that each connection beyond an attempt has moved, by inode, as far as known."""
    connections = (peer for sockets in sockets_by_process for peer in outside(sockets or (), attempt_sockets))
    return {peer.inode: peer.moved_bytes for peer in connections if peer.moved_bytes is not None}
