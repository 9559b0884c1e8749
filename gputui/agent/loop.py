"""The agent's loop: one thread, woken by the sampler, by files that changed, by a shim that ended, or by time."""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gputui.agent import handlers, rebuilding, removing
from gputui.agent.alerting import Alerting
from gputui.agent.file_output import FileOutput
from gputui.agent.hiding import HidingFormatter, redactor_of
from gputui.agent.lock import AgentLock
from gputui.agent.predecessor import note_predecessor
from gputui.agent.recorder import Recorder
from gputui.agent.sinks import Sinks
from gputui.agent.supervisor import Supervisor
from gputui.agent.upkeep import Upkeep
from gputui.config import Workspace
from gputui.gpu.client import SamplerClient, SamplerCommand
from gputui.gpu.model import FastTick
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.report import IngestReport
from gputui.metrics.watch import FileWatcher
from gputui.runs import repository
from gputui.runs.agent_process import anybody_looks
from gputui.runs.identity import boot_id, identify
from gputui.runs.repository import transaction
from gputui.runs.states import RunState
from gputui.store.database import StoreCorruptError, open_writer, set_aside, suspect_mark
from gputui.version import VERSION

log = logging.getLogger(__name__)

# Whoever writes a command rings the doorbell, which wakes the agent at once; this is for a bell that was not heard.
COMMAND_SECONDS = 1.0
HOUSEKEEPING_SECONDS = 1.0
# Lines that arrive together are stored together; one flush per line would be one transaction per line.
GATHER_SECONDS = 0.05
PUMP_BUDGET_BYTES = 8 << 20
# Between slices of what an older gputui stored and did not reduce for charts; a slice takes about 10 ms.
REDUCE_SECONDS = 0.1
LINGER_SECONDS = 30.0
OCCUPANTS_SECONDS = 2.0
UNWRITABLE_SECONDS = 0.5
TICKET_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How this agent was asked to run. ``recording`` keeps it alive with nothing else to do; ``duration_seconds``
    ends it by itself; ``linger_seconds`` is how long it stays once nobody needs it; ``output`` takes what is sampled,
    besides the database."""

    recording: bool = False
    interval_seconds: float = 1.0
    duration_seconds: float | None = None
    linger_seconds: float = LINGER_SECONDS
    output: FileOutput | None = None


class Agent:
    """One agent from taking the lock to leaving."""

    def __init__(
        self,
        workspace: Workspace,
        options: AgentOptions,
        lock: AgentLock,
        *,
        on_second: Callable[[Agent], None] | None = None,
    ) -> None:
        self.workspace = workspace
        self.options = options
        self.lock = lock
        self.on_second = on_second
        self.wall = time.time
        self.clock = time.monotonic
        self.started_at = self.wall()
        self.stopping = False
        self.replaced = False
        self.connection = self._open_store()
        self._store_inode = workspace.database.stat().st_ino
        forget_old_tickets(workspace, self.wall())
        self.selector = selectors.DefaultSelector()
        self.recorder = Recorder(self.connection, workspace.runs, self.wall)
        self.ingest = MetricsIngest(self.connection, redactor_of=partial(redactor_of, workspace))
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watcher = FileWatcher(workspace.runs, self._wake_write)
        self.supervisor = Supervisor(
            self.connection,
            workspace,
            self.ingest,
            self.recorder,
            self.selector,
            self.wall,
            self.clock,
            on_start=self.watcher.follow,
            on_end=self.watcher.unfollow,
            wake=self._wake,
        )
        self.alerting = Alerting(
            self.connection,
            workspace,
            self.recorder,
            self.wall,
            self.clock,
            self.supervisor.running,
            options.interval_seconds,
        )
        self.supervisor.outbox.alerts_by = self.alerting.told_by
        self.upkeep = Upkeep(self.connection, workspace, self.recorder, self.wall, options.interval_seconds)
        self.sinks = Sinks(self.connection, workspace, self.wall, self.clock)
        self._needed_at = self.clock()
        # A scenario among the state makes this a workspace of simulated GPUs.
        self.is_simulated = workspace.scenario.exists()
        self.sampler = SamplerClient(
            SamplerCommand(
                source="simulated" if self.is_simulated else "nvml",
                state_dir=workspace.state,
                interval_seconds=options.interval_seconds,
                scenario=workspace.scenario if self.is_simulated else None,
            ),
            workspace.agent_log,
        )
        self._unwritable: str | None = None
        self._shown_health: tuple[str, int] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a signal, the duration, or until nobody needs an agent."""
        self._catch_signals()
        self.selector.register(self._wake_read, selectors.EVENT_READ, None)
        note_predecessor(self.connection, self.wall())
        self._introduce(ready=False)
        rebuilding.rebuild(self.connection, self.workspace, self.ingest, self.wall())
        removing.go_on(self.workspace)
        self.watcher.start()
        self.supervisor.adopt()
        self.supervisor.repeat_stops()
        self.upkeep.begin()
        self.alerting.begin()
        self.sinks.begin()
        self.sampler.start()
        self.selector.register(self.sampler.fileno(), selectors.EVENT_READ, None)
        self._introduce(ready=True)
        log.info("agent %s started, pid %d, files by %s", VERSION, os.getpid(), self.watcher.mode)
        try:
            self._loop()
        finally:
            self.watcher.stop()
            self.sampler.close()
            self.sinks.close()
            if self.options.output is not None:
                self.options.output.close()
            self._leave()

    def _loop(self) -> None:
        started = self.clock()
        next_commands = next_housekeeping = next_occupants = next_reducing = started
        pump_at: float | None = started
        while not self.stopping:
            now = self.clock()
            due = min(next_commands, next_housekeeping, next_reducing, now + 1.0 if pump_at is None else pump_at)
            due = min(due, self.supervisor.next_due() or due)
            ready = {key.fd for key, _ in self.selector.select(max(0.0, due - now))}
            if self._wake_read in ready:
                self._drain_wake()
                next_commands = min(next_commands, self.clock())
                pump_at = min(pump_at or float("inf"), self.clock() + GATHER_SECONDS)
            try:
                is_tick = self.sampler.fileno() in ready and self._read_sampler()
                now = self.clock()
                # What is due before the sampler's next tick is done with this one: one wake-up a second serves all.
                soon = now + 0.9 * min(1.0, self.options.interval_seconds) if is_tick else now
                if pump_at is not None and now >= pump_at:
                    pump_at = now if self._pump() else None
                if soon >= next_commands:
                    next_commands = now + COMMAND_SECONDS
                    if handlers.answer_all(self.supervisor):
                        self._needed_at = now
                self.supervisor.turn()
                if soon >= next_housekeeping:
                    next_housekeeping = now + HOUSEKEEPING_SECONDS
                    pump_at = now if pump_at is None and self.supervisor.live else pump_at
                    self._housekeeping(now, started)
                if now >= next_reducing:
                    next_reducing = now + REDUCE_SECONDS if self.ingest.reduce_more() else math.inf
                if self.is_simulated and now >= next_occupants:
                    next_occupants = now + OCCUPANTS_SECONDS
                    self.sampler.send_occupants(self.supervisor.occupants())
            except sqlite3.OperationalError as error:
                # A full disk or a lock held elsewhere: nothing was changed, everything is tried again.
                self._wait_quietly(str(error))
            else:
                if self._unwritable is not None:
                    log.info("the database can be written again")
                    self._unwritable = None

    def _wait_quietly(self, why: str) -> None:
        if why != self._unwritable:
            # Said once: where the disk is full, the log lies on it too.
            log.warning("the database cannot be written now: %s", why)
            self._unwritable = why
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        # What is ready stays so until it is looked at, so that a selector would not wait.
        time.sleep(UNWRITABLE_SECONDS)

    # --- what wakes it --------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        def ask_to_stop(_number: int, _frame: object) -> None:
            self.stopping = True

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ask_to_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if not self.options.recording else ask_to_stop)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except OSError:
            # The pipe is full of wake-ups already, or the loop has ended.
            return

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake_read, 65536):
                pass
        except BlockingIOError:
            return

    def _read_sampler(self) -> bool:
        """Take in what the sampler has told; whether its tick is among it."""
        messages = self.sampler.read()
        self.recorder.take(messages)
        if self.options.output is not None:
            indices = {uuid: gpu.index for uuid, gpu in self.recorder.facts.items()}
            self.options.output.take(messages, indices)
        self.recorder.flush(heartbeat=True)
        self.supervisor.needs_schedule = True
        return any(isinstance(message, FastTick) for message in messages)

    def _pump(self) -> bool:
        self.watcher.take()
        report = self.ingest.pump(budget_bytes=PUMP_BUDGET_BYTES)
        self._note_progress(report)
        self.alerting.take(report)
        for run_id, note in report.notes:
            repository.add_event(self.connection, note, now=self.wall(), severity="warning", run_id=run_id)
        return report.more

    def _note_progress(self, report: IngestReport) -> None:
        for progress in report.progress:
            with transaction(self.connection):
                repository.note_steps(
                    self.connection,
                    progress.run_id,
                    progress.attempt,
                    first=progress.first_step,
                    last=progress.last_step,
                    at=self.wall(),
                )
                run = repository.get_run(self.connection, progress.run_id)
                if run is not None and run.state is RunState.STARTING and run.attempt == progress.attempt:
                    repository.move(
                        self.connection, run, RunState.RUNNING, cause="its first step was seen", now=self.wall()
                    )

    # --- once a second --------------------------------------------------------------------------------------------

    def _housekeeping(self, now: float, started: float) -> None:
        self._watch_sampler(now)
        self.upkeep.turn(now, self.supervisor.folders())
        self.alerting.turn()
        self.sinks.turn()
        # What a queued run waits for (disk space, a file, a GPU) may have changed without a word.
        self.supervisor.needs_schedule = True
        if not self._store_is_ours():
            log.error("%s was replaced or removed; starting over with what is there", self.workspace.database)
            self.replaced = self.stopping = True
        if self.on_second is not None:
            self.on_second(self)
        if self.options.duration_seconds is not None and now - started >= self.options.duration_seconds:
            self.stopping = True
        if self.options.recording or self.supervisor.is_busy() or self.sinks.is_busy() or anybody_looks(self.workspace):
            self._needed_at = now
        elif now - self._needed_at >= self.options.linger_seconds:
            log.info("nobody needs an agent now")
            self.stopping = True

    def _watch_sampler(self, now: float) -> None:
        health = self.sampler.check(now)
        shown = (health.state, 0 if health.state == "ok" else int(health.for_seconds))
        if shown != self._shown_health:
            self._shown_health = shown
            self.connection.execute(
                "UPDATE agent SET sampler_state = ?, sampler_silent_seconds = ?, heartbeat_at = ?",
                (health.state, None if health.state == "ok" else health.for_seconds, self.wall()),
            )

    def _store_is_ours(self) -> bool:
        """Whether the database that is written to is still the file that everybody else opens."""
        try:
            return self.workspace.database.stat().st_ino == self._store_inode
        except FileNotFoundError:
            return False

    # --- coming and going -----------------------------------------------------------------------------------------

    def _open_store(self) -> sqlite3.Connection:
        path = self.workspace.database
        try:
            return open_writer(path)
        except StoreCorruptError as error:
            aside = set_aside(path, self.wall())
            connection = open_writer(path)
            repository.add_event(
                connection,
                f"the database was damaged and set aside as {aside.name}; a new one was begun",
                now=self.wall(),
                severity="error",
            )
            log.error("%s; set aside as %s", error, aside)
            return connection

    def _introduce(self, *, ready: bool) -> None:
        own = identify(os.getpid())
        assert own is not None
        self.lock.describe(
            {
                "pid": own.pid,
                "start_ticks": own.start_ticks,
                "boot_id": boot_id(),
                "version": VERSION,
                "started_at": self.started_at,
                "recording": self.options.recording,
                "ready": ready,
            }
        )
        self.connection.execute(
            "INSERT OR REPLACE INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at, "
            "recording, interval_seconds) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                own.pid,
                own.start_ticks,
                boot_id(),
                VERSION,
                self.started_at,
                self.wall(),
                self.options.recording,
                self.options.interval_seconds,
            ),
        )

    def _leave(self) -> None:
        try:
            self.recorder.flush()
            self.alerting.save()
            self.connection.execute("UPDATE agent SET ended_at = ?", (self.wall(),))
        except sqlite3.OperationalError as error:
            log.warning("the last words of this agent cannot be written: %s", error)
        self.connection.close()
        log.info("agent ended")


def forget_old_tickets(workspace: Workspace, now: float) -> None:
    """Specifications whose command was withdrawn lie in the inbox; they may hold secrets."""
    for path in (workspace.state / "inbox").glob("*.json*"):
        try:
            if now - path.stat().st_mtime > TICKET_SECONDS:
                path.unlink()
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error)


def describe_failure(workspace: Workspace, error: sqlite3.DatabaseError) -> str:
    """Why the agent ends. Where the file may be damaged, a mark is left so that the next one checks all of it."""
    if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
        return f"{workspace.database}: {error}; free some disk space, or end the program that holds it"
    suspect_mark(workspace.database).touch()
    return f"{workspace.database}: {error}; the next start will check it and set it aside if it is damaged"


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HidingFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def active_runs(connection: sqlite3.Connection) -> int:
    """How many runs are not over."""
    over = json.dumps([state for state in RunState if state.is_over])
    row = connection.execute("SELECT count(*) FROM runs WHERE state NOT IN (SELECT value FROM json_each(?))", (over,))
    return int(row.fetchone()[0])
