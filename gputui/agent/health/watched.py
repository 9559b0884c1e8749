"""A live attempt under watch: its stored lines, its processes, and checks of how it is set up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job, JobKey, Purpose
from gputui.core.files import open_regular
from gputui.metrics.formats import PRINTED_STREAMS
from gputui.recovery.resumptions import resumptions
from gputui.recovery.watch.activity import ProcessSnapshot
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.rules import Observation
from gputui.recovery.watch.silence import StepPace, StepProgress
from gputui.runs.checkpoint_files import list_checkpoints
from gputui.runs.command import checkpoint_directory, in_run
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.logs import FIRST_NODE
from gputui.runs.process_readings import ProcessReading, read_process
from gputui.runs.process_sockets import outside, read_sockets, sockets_of
from gputui.runs.processes import AttemptProcess
from gputui.runs.spec import RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.database import one_moment, open_reader
from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.step_lines import StepLines
from gputui.store.metrics.stored_lines import FilePosition
from gputui.store.metrics.watched import earlier_starts, ended_for_hang, newest_lines

METRICS_SECONDS = 6.0  # a person waits for the first hint, and no rule needs it sooner
# A run that trains has printed so many lines without a metrics line.
PRINTED_LINES = 200
# So many lines of an attempt show how far apart they are.
START_LINES = 3
JOB_SECONDS = 60.0  # a file system of the network that answers at all does so within
_READ_BYTES = 256 << 10
# Only the newest lines are read, so that a check is short even if lines arrive faster than a
# thousand a second.
LINES_PER_LOOK = 2000
HISTORY_LINES = 5000  # more than any rule looks back


@dataclass(slots=True)
class WatchedAttempt:
    """A live attempt under watch. Times are monotonic seconds.

    Attributes:
        cursor: up to where its stored lines were read, by source.
        pending: observations of stored lines that are not acted on yet.
        reported: the kinds of observations that are stored.
        ending: the kind of the observation for which it is being ended.
        stack_dump: the job that dumps its stacks before its end.
        memory_at: the last look at its memory.
        metrics_at: the last look for signs that it trains without metrics.
        is_start_known: its first lines were compared with the checkpoint that it was given.
    """

    watch: AttemptWatch
    cursor: dict[int, FilePosition] = field(default_factory=dict)
    pending: list[Observation] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    ending: str | None = None
    stack_dump: Job[tuple[int | None, str] | None] | None = None
    memory_at: float = -math.inf
    metrics_at: float = -math.inf
    is_start_known: bool = False


def begin(connection: Connection, record: Attempt, clock: float, wall: float) -> WatchedAttempt:
    """Derive the state from stored lines, so that a new agent does not start from nothing.

    Args:
        clock: now, in monotonic seconds.
        wall: now, in UTC unix seconds.
    """
    run_id = record.run_id
    number = record.number
    pace = StepPace()
    for seconds in earlier_starts(connection, run_id, number):
        pace.add_start(seconds)
    watch = AttemptWatch(record, StepProgress(pace), clock)
    watch.activity.is_patient = ended_for_hang(connection, run_id, number)
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
    """Read an attempt's processes.

    Args:
        at: now, in monotonic seconds.
        with_connections: also read the connections to processes beyond the attempt.
    """
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
    moved_bytes: dict[int, int] = {}
    if with_connections:
        is_closed, moved_bytes = _outside_connections(processes, has_ranks=bool(ranks))
    if not ranks and others:
        return ProcessSnapshot(at, {None: others}, [], size=1, is_closed=is_closed, outside_bytes=moved_bytes)
    return ProcessSnapshot(at, ranks, others, size=size, is_closed=is_closed, outside_bytes=moved_bytes)


def _outside_connections(processes: Sequence[AttemptProcess], *, has_ranks: bool) -> tuple[bool, dict[int, int]]:
    """Look at the connections of an attempt's processes to processes beyond the attempt.

    Args:
        has_ranks: some of the processes have a rank; only those are asked for whether one has a connection.

    Returns:
        Whether none has a connection, and what the connections of all have moved, in bytes by inode.
    """
    all_sockets = read_sockets()
    sockets_by_process = {process: sockets_of(process.pid, all_sockets) for process in processes}
    attempt_sockets = [socket for sockets in sockets_by_process.values() for socket in sockets or ()]
    members = [sockets for process, sockets in sockets_by_process.items() if process.rank is not None or not has_ranks]
    is_closed = not any(sockets is None or outside(sockets, attempt_sockets) for sockets in members)
    moved_bytes: dict[int, int] = {}
    for sockets in sockets_by_process.values():
        connections = outside(sockets or (), attempt_sockets)
        moved_bytes |= {peer.inode: peer.moved_bytes for peer in connections if peer.moved_bytes is not None}
    return is_closed, moved_bytes


# --- the setup ---------------------------------------------------------------------------------


def check_setup(context: AgentContext, watched: WatchedAttempt, spec: RunSpec) -> Iterator[Observation]:
    """Observe, each once, what is wrong with the setup of an attempt: its metrics, and its checkpoint."""
    watch = watched.watch
    resumed_from = watch.record.resumed_from
    if spec.metrics and not watch.had_lines and "no_metrics" not in watched.reported:
        yield from _check_metrics(context, watched, spec)
    if resumed_from is not None and not watched.is_start_known and watch.progress.lines >= START_LINES:
        watched.is_start_known = True
        yield from _check_checkpoint(context.connection, watch, resumed_from)
    if (rank := watch.lone_rank) is not None and "no_first_rank" not in watched.reported:
        text = (
            f"all of its metrics lines have rank {rank}, and gputui watches and draws those of "
            "rank 0 or without a rank: let rank 0 write them; if it is no process's rank, such "
            "as LoRA's, give it another name"
        )
        yield Observation("no_first_rank", text=text)


def _check_metrics(context: AgentContext, watched: WatchedAttempt, spec: RunSpec) -> Iterator[Observation]:
    """Observe a run that trains without a metrics line; it would look like one that is starting."""
    if context.monotonic() < watched.metrics_at + METRICS_SECONDS:
        return
    record = watched.watch.record
    run_dir = context.workspace.run_dir(record.run_id)
    began = record.started_at or record.created_at
    work = partial(missing_metrics, spec, run_dir, record.number, began)
    key = JobKey(Purpose.SETUP, record.run_id, record.number)
    job = context.jobs.ask(key, work, deadline_seconds=JOB_SECONDS)
    if job is not None:
        watched.metrics_at = context.monotonic()
        with suppress(OSError):
            if (text := job.result()) is not None:
                yield Observation("no_metrics", text=text)


def _check_checkpoint(connection: Connection, watch: AttemptWatch, checkpoint: str) -> Iterator[Observation]:
    """Observe an attempt that has loaded a later checkpoint than it was given: one that is passed
    over, perhaps because it was written after a NaN."""
    record = watch.record
    attempts = read_attempts(connection, record.run_id)
    ledger = checkpoints.of_run(connection, record.run_id)
    loaded = resumptions(attempts, StepLines(connection, record.run_id), ledger)
    if loaded.get(record.number) == "later":
        first = next(row.first_step for row in attempts if row.number == record.number)
        text = (
            f"steps begin at {first}, after {Path(checkpoint).name} (step {record.resumed_step}), which "
            "was given: the script found a later one, which gputui had passed over; pass it "
            "{checkpoint} in the profile's resume, or let it read $GPUTUI_CHECKPOINT"
        )
        yield Observation("not_resumed", text=text, since=first)


def missing_metrics(spec: RunSpec, run_dir: Path, attempt: int, began: float) -> str | None:
    """Look for signs that an attempt without a metrics line trains: a checkpoint, or PRINTED_LINES lines of
    its first rank.

    Args:
        began: the attempt's start, in UTC unix seconds.

    Returns:
        A sentence about the first sign; None without one.
    """
    paths = [source.path for source in spec.metrics if source.path is not None]
    files = [str(in_run(path, spec, run_dir)) for path in paths]
    unread = [f"no metrics line was read from {' or '.join(files)}"] if files else []
    printed = [source.kind for source in spec.metrics if source.kind in PRINTED_STREAMS]
    if spec.learns_metrics:
        unread.append("nothing that it has printed or written looks like metrics")
    if printed:
        unread.append(f"nothing in its {printed[0]} matches the patterns of its profile")
    folder = checkpoint_directory(spec, run_dir)
    newest = None
    if folder is not None and spec.checkpoints is not None:
        with suppress(OSError):
            newest = next(iter(list_checkpoints(folder, spec.checkpoints.pattern)), None)
    if newest is not None and newest.modified_ns / 1e9 >= began:
        return f"it has saved {Path(newest.path).name}, but {' and '.join(unread)}"
    node_dir = run_dir / "attempts" / str(attempt) / FIRST_NODE
    outputs = LAUNCHERS[spec.launcher].log_files(node_dir, spec.nproc)
    # Updates of a progress bar, which end with a carriage return, count too.
    for output in outputs:
        with suppress(OSError), open_regular(output) as file:
            if len(file.read(_READ_BYTES).splitlines()) >= PRINTED_LINES:
                return f"it has printed {PRINTED_LINES} lines, but {' and '.join(unread)}"
    return None
