"""Start an agent in the background, or in the foreground as `gputui --record`."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import resource
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from gputui.agent.agent_lock import AgentLock, AgentRunningError
from gputui.agent.loop import Agent
from gputui.agent.own_state import LINGER_SECONDS, AgentOptions
from gputui.agent.recording.attached import POLL_SECONDS, StoredSamples, follow
from gputui.agent.recording.output import FileOutput, Shape, record_line, record_shape
from gputui.core.config import Workspace
from gputui.core.redaction import Redactor, secrets_in
from gputui.core.text import clip
from gputui.runs.agent_process import AgentUnreachableError, has_views, read_identity, spawn_agent, stop_agent
from gputui.store.database import StoreError, suspect_mark
from gputui.store.runs import active_run_count

log = logging.getLogger(__name__)

TAKE_OVER_SECONDS = 15.0  # an agent ends its turn and its threads within a few
REPORT_SECONDS = 60.0  # a log of a day has 1440 lines
# The agent calls once a second, a second recorder more often.
REWRITE_SECONDS = 0.9
SWITCH_SECONDS = 0.0005  # a thread that computes holds up a turn no longer than this

_LIMITS_TO_RAISE = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)


class RecordError(Exception):
    """Recording cannot start; the message says why and what to do."""


def run_in_background(workspace: Workspace, *, interval_seconds: float, linger_seconds: float | None) -> int:
    """Run the agent until no client needs it; return the exit code, which is 0 if another agent
    already runs."""
    log_to_stderr()
    try:
        workspace.create()
        lock = AgentLock.take(workspace.agent_lock)
    except AgentRunningError:
        return 0
    except (StoreError, OSError) as error:
        return _failed(error)
    if linger_seconds is None:
        linger_seconds = LINGER_SECONDS
    options = AgentOptions(interval_seconds=interval_seconds, linger_seconds=linger_seconds)
    return _run(workspace, options, lock, on_second=None)


def run_recorder(
    workspace: Workspace,
    *,
    interval_seconds: float,
    duration_seconds: float | None,
    as_json: bool,
    output: TextIO,
    samples: FileOutput | None = None,
) -> int:
    """Run the agent in the foreground: record until stopped, print its state, and return the exit
    code.

    It replaces an agent in the background, and starts one if runs are alive when it ends. Beside another recorder it
    only reads what that one records, and records on when it ends. ``samples`` is a second destination of samples
    beside the database. Raises RecordError.
    """
    ends_at = math.inf if duration_seconds is None else time.monotonic() + duration_seconds
    reporter = _Reporter(as_json, output)
    try:
        workspace.create()
        if samples is not None:
            samples.start()
        while (lock := _take_over(workspace)) is None:
            if not _attach(workspace, reporter, samples, ends_at):
                if samples is not None:
                    samples.close()
                return 0
    except OSError as error:
        text = f"cannot write {error.filename or workspace.state}: {error.strerror}"
        raise RecordError(f"{text}; choose another --home or --output") from error
    remaining_seconds = None if duration_seconds is None else max(0.0, ends_at - time.monotonic())
    options = AgentOptions(
        recording=True,
        interval_seconds=interval_seconds,
        duration_seconds=remaining_seconds,
        linger_seconds=0.0,
        output=samples,
    )
    where = workspace.database if samples is None else f"{workspace.database} and {samples.path}"
    print(f"gputui: recording every {interval_seconds:g} s into {where}; ctrl+c ends it", file=sys.stderr)  # noqa: T201
    code = _run(workspace, options, lock, reporter)
    if workspace.database.exists():
        _start_agent_if_needed(workspace)
    return code


def _start_agent_if_needed(workspace: Workspace) -> None:
    """Start an agent in the background for runs or views that are left. Raises RecordError."""
    with sqlite3.connect(f"{workspace.database.as_uri()}?mode=ro", uri=True) as connection:
        is_needed = active_run_count(connection) > 0 or has_views(workspace)
    if not is_needed:
        return
    try:
        spawn_agent(workspace)
    except AgentUnreachableError as error:
        raise RecordError(str(error)) from error


def _take_over(workspace: Workspace) -> AgentLock | None:
    """The lock, which an agent in the background hands over; None if a recorder holds it."""
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        try:
            return AgentLock.take(workspace.agent_lock)
        except AgentRunningError as error:
            identity = read_identity(workspace)
            if identity is not None and identity.recording:
                return None
            if time.monotonic() > deadline:
                text = f"{error}, and does not hand over; its log is {workspace.agent_log}"
                raise RecordError(text) from error
            stop_agent(workspace)
            time.sleep(0.05)


def _attach(workspace: Workspace, reporter: _Reporter, samples: FileOutput | None, ends_at: float) -> bool:
    """Serve the outputs of this recorder beside another one. Raises RecordError.

    Returns:
        Whether to take over the recording, because the other recorder has ended.
    """
    identity = read_identity(workspace)
    if identity is None or not identity.ready:
        time.sleep(POLL_SECONDS)
        return not reporter.is_asked_to_stop
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, reporter.ask_to_stop)
    pid = identity.process.pid
    remark = "at its own interval; this one serves its outputs beside it, and records on when that ends"
    print(f"gputui: pid {pid} records here already, {remark}", file=sys.stderr)  # noqa: T201
    try:
        has_ended = follow(
            workspace,
            identity.process,
            is_over=lambda: reporter.is_asked_to_stop or reporter.is_gone or time.monotonic() >= ends_at,
            show=reporter.show_stored,
            samples=samples,
        )
    except (StoreError, sqlite3.Error) as error:
        raise RecordError(str(error)) from error
    if has_ended and workspace.agent_stopped.exists():
        print("gputui: gputui agent stop has ended the recording", file=sys.stderr)  # noqa: T201
        has_ended = False
    return has_ended and not reporter.is_asked_to_stop


def _run(
    workspace: Workspace, options: AgentOptions, lock: AgentLock, on_second: Callable[[Agent], None] | None
) -> int:
    workspace.agent_stopped.unlink(missing_ok=True)
    raise_limits()
    try:
        agent = Agent(workspace, options, lock, on_second=on_second)
    except (StoreError, OSError) as error:
        return _failed(error)
    # All objects made so far live as long as the process.
    gc.freeze()
    # The longest that the loop waits for a job's thread to yield the interpreter.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        agent.run()
    except sqlite3.DatabaseError as error:
        return _failed(describe_failure(workspace, error))
    lock.release()
    if agent.is_replaced and workspace.state.is_dir():
        try:
            spawn_agent(workspace)
        except AgentUnreachableError as error:
            return _failed(error)
    return 0


def raise_limits() -> None:
    """Raise the limits that would end this process or its writes to the hard ones."""
    for number in _LIMITS_TO_RAISE:
        _, hard = resource.getrlimit(number)
        resource.setrlimit(number, (hard, hard))


def _failed(why: object) -> int:
    """Print the one line that a person or the log gets; return the exit code."""
    print(f"gputui: {why}", file=sys.stderr)  # noqa: T201
    return 1


def describe_failure(workspace: Workspace, error: sqlite3.DatabaseError) -> str:
    """Message for a database error that ends the agent. If the file may be damaged, a marker file
    makes the next agent check it."""
    is_damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
    if isinstance(error, sqlite3.OperationalError) and not is_damaged:
        remedy = "free some disk space, or end the program that holds it"
    else:
        remedy = "the next start will check it and set it aside if it is damaged"
        with suppress(OSError):
            suspect_mark(workspace.database).touch()
    return f"{workspace.database}: {error}; {remedy}"


class HidingFormatter(logging.Formatter):
    """Redacts the secrets of the agent's environment from log lines and tracebacks."""

    def __init__(self, pattern: str, date_pattern: str) -> None:
        super().__init__(pattern, date_pattern)
        self._redactor = Redactor(secrets_in(os.environ, {}))

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    pattern = "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(HidingFormatter(pattern, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


class _Reporter:
    """Prints the machine's state after the first sample: one line a minute, or on a terminal one
    line that is rewritten every second."""

    def __init__(self, as_json: bool, output: TextIO) -> None:
        self._as_json = as_json
        self._output = output
        self._rewrites = not as_json and output.isatty()
        self._next_at = 0.0
        self.is_gone = False
        """True if nobody reads the output any more."""
        self.is_asked_to_stop = False
        """True after a signal that came beside another recorder; also if the agent begins just then."""

    def ask_to_stop(self, _number: int, _frame: object) -> None:
        """Handle a signal until an agent does."""
        self.is_asked_to_stop = True

    def __call__(self, agent: Agent) -> None:
        if self.is_asked_to_stop:
            agent.is_stopping = True
        context = agent.context
        recorder = agent.context.recorder
        if recorder.host is None or recorder.inventory is None or not self._is_due():
            return
        indices = {uuid: gpu.index for uuid, gpu in recorder.facts.items()}
        runs = active_run_count(context.connection)
        problem = recorder.inventory.problem
        self._print(
            record_shape(
                indices, recorder.fast.values(), recorder.host, gpu_problem=problem, active_runs=runs, now=context.now()
            )
        )
        if self.is_gone:
            agent.is_stopping = True

    def show_stored(self, stored: StoredSamples) -> None:
        """As for an agent, of another recorder's samples."""
        if self._is_due():
            self._print(stored.shape())

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        pause = REWRITE_SECONDS if self._rewrites else REPORT_SECONDS
        self._next_at = now + pause
        return True

    def _print(self, shape: Shape) -> None:
        line = json.dumps(shape) if self._as_json else record_line(shape)
        end = "\n"
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            line = "\r\x1b[2K" + clip(line, max(1, width))
            end = ""
        try:
            print(line, end=end, file=self._output, flush=True)
        except BrokenPipeError:
            self.is_gone = True
