"""The agent's loop: one thread, woken by the sampler, by commands, by the end of an executor, or by
time."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec import Struct

from gputui.agent.agent_lock import AgentLock
from gputui.agent.children import Sinks, Studies
from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.doorbell import Doorbell
from gputui.agent.error_barrier import roll_back
from gputui.agent.group_access import GroupAccess
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.execution import note_report, read_rest
from gputui.agent.lifecycle.rebuild import follow_moved_home, rebuild
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.maintenance import Maintenance, note_predecessor
from gputui.agent.notify.news import News
from gputui.agent.notify.outbox import Outbox
from gputui.agent.recording.output import FileOutput
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, Inventory
from gputui.machine.sampler_client import SamplerClient, SamplerCommand
from gputui.metrics.ingest import PUMP_SECONDS
from gputui.runs.agent_process import agent_argv, has_views
from gputui.runs.identity import identify
from gputui.store.database import StoreCorruptError, is_same_file, open_writer, set_aside
from gputui.store.events import NewEvent, add_event
from gputui.version import VERSION

log = logging.getLogger(__name__)

# Poll interval for commands, in case a notification was lost.
COMMAND_SECONDS = 1.0
MAINTENANCE_SECONDS = 1.0
# Poll interval for the metrics files of live runs; lines in between are stored in one transaction.
INTAKE_SECONDS = 0.25
# Budget for the files of live attempts in a turn that also reads those of ended ones.
SHORT_PUMP_SECONDS = 0.005
LINGER_SECONDS = 30.0
OCCUPANTS_SECONDS = 1.0
UNWRITABLE_SECONDS = 0.5
RESTING_SECONDS = 0.05


class AgentOptions(Struct, frozen=True):
    """Options of an agent.

    Attributes:
        recording: run without clients or runs.
        interval_seconds: that of samples.
        duration_seconds: end after that time.
        linger_seconds: stay that long without clients.
        output: a second destination of samples.
    """

    recording: bool = False
    interval_seconds: float = 1.0
    duration_seconds: float | None = None
    linger_seconds: float = LINGER_SECONDS
    output: FileOutput | None = None


class Agent:
    """One agent, from taking the lock to its end.

    Attributes:
        on_second: called once a second after samples are stored.
        identity, started_at: this process, and when it began (UTC unix seconds).
        is_stopping: the loop ends after this turn.
        is_replaced: it ends because its database or its folder was exchanged.
        is_simulated: a scenario file in the state directory replaces the GPUs by simulated ones.
    """

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
        self.started_at = time.time()
        identity = identify(os.getpid())
        assert identity is not None
        self.identity = identity
        self.is_stopping = False
        self.is_replaced = False
        connection = self._open_store()
        self._own_files = {
            workspace.database: workspace.database.stat(),
            workspace.agent_lock: os.fstat(lock.descriptor),
        }
        self.selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        interval = options.interval_seconds
        self.context = context = AgentContext.of(connection, workspace, wake=self._wake, interval_seconds=interval)
        self.doorbell = Doorbell(workspace.runs, self._wake)
        self.supervisor = Supervisor(context, self.selector)
        self.alert_evaluation = AlertEvaluation(context, self.supervisor.running, interval)
        self.news = News(context, Outbox(context))
        self.maintenance = Maintenance(context)
        self.group_access = GroupAccess(context)
        self.sinks = Sinks(context)
        self.studies = Studies(context)
        self._began_at = self._needed_at = now = context.monotonic()
        # When each part is due, in monotonic seconds.
        self._due = dict.fromkeys(("metrics", "commands", "maintenance"), now)
        self.is_simulated = workspace.scenario.exists()
        source: Literal["nvml", "simulated"] = "nvml"
        scenario = None
        if self.is_simulated:
            source = "simulated"
            scenario = workspace.scenario
            self._due["occupants"] = now
        command = SamplerCommand(
            source=source,
            state_dir=workspace.state,
            interval_seconds=interval,
            scenario=scenario,
            successor=(*agent_argv(workspace)[1:], "--successor"),
        )
        self.sampler = SamplerClient(command, workspace.agent_log)
        # Ended runs that were read back from their folders, without their metrics.
        self._unread_runs: list[str] = []
        self._unwritable: str | None = None
        self._stored_longest_turn = 0.0
        self._stored_health: tuple[str, int] | None = None

    def run(self) -> None:
        """Run until a signal arrives, the duration is over, or no client needs the agent."""
        self._catch_signals()
        self.selector.register(self._wake_read, selectors.EVENT_READ, None)
        with self.supervisor.barrier.guard("looking for a former agent", is_run=False):
            # Before the row of the former agent is overwritten.
            note_predecessor(self.context)
        self._write_own_row()
        self._describe()
        self.doorbell.start()
        self._begin()
        self.sampler.start()
        self.selector.register(self.sampler.fileno(), selectors.EVENT_READ, None)
        self._describe(ready=True)
        log.info("agent %s started, pid %d", VERSION, os.getpid())
        self.context.janitor.start()
        try:
            self._loop()
        finally:
            self.context.janitor.stop()
            self.doorbell.stop()
            self.sampler.close()
            self.sinks.close()
            self.studies.close()
            self.news.outbox.close()
            if self.options.output is not None:
                self.options.output.close()
            self._leave()

    def _begin(self) -> None:
        """Continue where the former agent ended. Each step fails alone: an unexpected error must
        not keep the agent from starting. Raises sqlite3.Error if the database itself fails."""

        def read_runs_back() -> None:
            self._describe("reading runs back from their folders")
            follow_moved_home(self.context)
            self._unread_runs += rebuild(self.context)
            self._describe()

        steps: dict[str, Callable[[], object]] = {
            "reading runs back": read_runs_back,
            "news": self.news.begin,
            "maintenance": self.maintenance.begin,
            "adoption": self.supervisor.adopt,
            "alerts": self.alert_evaluation.begin,
        }
        for name, step in steps.items():
            with self.supervisor.barrier.guard(name, is_run=False):
                step()

    def _loop(self) -> None:
        barrier = self.supervisor.barrier
        # The time to linger counts from here, not from before a long start.
        self._began_at = self._needed_at = self.context.monotonic()
        while not self.is_stopping:
            next_due = min(*self._due.values(), self.supervisor.next_due())
            pause = max(0.0, next_due - self.context.monotonic())
            ready = {key.fd for key, _ in self.selector.select(pause)}
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, 65536):
                        pass
                self._hasten("commands", self.context.monotonic())
                if self.context.ingest.has_answers():
                    self._hasten("metrics", self.context.monotonic())
            barrier.begin_turn()
            self.context.budget.begin()
            try:
                with self.context.janitor.writing:
                    self._run_once(ready)
            except sqlite3.OperationalError as error:
                # Another process holds the lock: nothing was changed, everything is tried again.
                roll_back(self.context.connection)
                barrier.unwritable = str(error)
            barrier.end_turn()
            self._pause(barrier.unwritable, has_skipped_step=barrier.has_skipped_step)

    def _run_once(self, ready: set[int]) -> None:
        """One turn: ends of attempts, samples, metrics, commands, then runs and upkeep. Each part
        fails alone. Raises sqlite3.OperationalError if the database is locked."""
        barrier = self.supervisor.barrier
        due_times = self._due
        barrier.run("noticing ends", self.supervisor.notice_ends)
        is_tick = self.sampler.fileno() in ready and barrier.run("samples", self._read_sampler)
        if is_tick:
            self._note_gpus()
        now = self.context.monotonic()
        # Work that is due before the sampler's next tick is done now: one wake-up a second serves
        # all.
        soon = now
        if is_tick:
            soon += 0.9 * min(1.0, self.options.interval_seconds)
        is_training = bool(self.supervisor.attempts)
        if now >= due_times["metrics"]:
            due_times["metrics"] = now + INTAKE_SECONDS if is_training else math.inf
            if barrier.run("metrics", self._pump):
                due_times["metrics"] = now
        if soon >= due_times["commands"]:
            seconds = COMMAND_SECONDS if self.doorbell.is_heard else INTAKE_SECONDS
            due_times["commands"] = now + seconds
            if barrier.run("commands", partial(dispatch.answer_all, self.supervisor)):
                self._needed_at = now
        self.supervisor.advance()
        if soon >= due_times["maintenance"] and self.context.budget.postpones("maintenance"):
            due_times["maintenance"] = now
        elif soon >= due_times["maintenance"]:
            due_times["maintenance"] = now + MAINTENANCE_SECONDS
            if self.supervisor.attempts:
                self._hasten("metrics", now + INTAKE_SECONDS)
            self._maintain(now)
        if self.is_simulated and now >= due_times["occupants"]:
            due_times["occupants"] = now + OCCUPANTS_SECONDS
            barrier.run("occupants", lambda: self.sampler.send_occupants(self.supervisor.occupants()))

    def _hasten(self, what: str, at: float) -> None:
        self._due[what] = min(self._due[what], at)

    def _pause(self, unwritable: str | None, *, has_skipped_step: bool) -> None:
        """Sleep after a turn in which something failed. A selector would not wait, because its
        descriptors stay ready until they are read."""
        if unwritable is not None and unwritable != self._unwritable:
            # Logged once: on a full disk, the log would fill up too.
            log.warning("the database cannot be written now: %s; see whether its disk is full", unwritable)
        elif unwritable is None and self._unwritable is not None:
            log.info("the database can be written again")
        self._unwritable = unwritable
        if unwritable is not None:
            time.sleep(UNWRITABLE_SECONDS)
        elif has_skipped_step:
            time.sleep(RESTING_SECONDS)

    def _catch_signals(self) -> None:
        def ask_to_stop(_number: int, _frame: object) -> None:
            self.is_stopping = True

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ask_to_stop)
        if self.options.recording:
            signal.signal(signal.SIGHUP, ask_to_stop)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _wake(self) -> None:
        # The pipe may be full of wake-ups already, or the loop have ended.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _read_sampler(self) -> bool:
        """Take in the sampler's messages; True if its tick is among them."""
        messages = self.sampler.read()
        recorder = self.context.recorder
        inventories = [message for message in messages if isinstance(message, Inventory)]
        if inventories:
            # Before the first sample, which is what a command waits for that asks which GPUs are free.
            recorder.take(inventories)
            recorder.flush()
            self._note_gpus()
        recorder.take(message for message in messages if not isinstance(message, Inventory))
        if self.options.output is not None:
            indices = {uuid: gpu.index for uuid, gpu in recorder.facts.items()}
            self.options.output.take(messages, indices)
        recorder.flush(heartbeat=True)
        self.supervisor.needs_schedule = True
        return any(isinstance(message, FastTick) for message in messages)

    def _note_gpus(self) -> None:
        """Store which GPUs others hold, and which this home uses."""
        self.supervisor.barrier.run("the locks of GPUs", self.supervisor.admission.note_locks)
        self.supervisor.barrier.run("the choice of GPUs", self.supervisor.used_gpus.poll)

    def _pump(self) -> bool:
        if self.context.janitor.is_log_late:
            return False
        # A turn has time for one long file, and those of ended attempts come first.
        is_short = self.supervisor.is_reading_rest()
        seconds = SHORT_PUMP_SECONDS if is_short else PUMP_SECONDS
        report = self.context.ingest.pump(budget_seconds=seconds)
        note_report(self.context, report)
        if self._unread_runs and not is_short:
            rest = read_rest(self.context, self._unread_runs[0], PUMP_SECONDS)
            if not rest.more and not rest.awaits:
                del self._unread_runs[0]
        return report.more or bool(self._unread_runs)

    def _maintain(self, now: float) -> None:
        barrier = self.supervisor.barrier
        living = [live.record for live in self.supervisor.attempts.values()]
        barrier.run("the sampler", lambda: self._watch_sampler(now))
        barrier.run("maintenance", lambda: self.maintenance.poll(now, living))
        barrier.run("group access", self.group_access.poll)
        barrier.run("alerts", self.alert_evaluation.poll)
        barrier.run("exports", self.sinks.poll)
        barrier.run("studies", self.studies.poll)
        barrier.run("news", self.news.poll)
        # Preconditions of queued runs (disk space, a file, a GPU) change without notice.
        self.supervisor.needs_schedule = True
        barrier.run("the janitor", self.context.janitor.call)
        barrier.run("the agent's own state", lambda: self._check_own_state(now))

    def _watch_sampler(self, now: float) -> None:
        health = self.sampler.check(now)
        inventory = self.context.recorder.inventory
        problem = self.sampler.problem
        if not problem and inventory is not None:
            problem = inventory.problem
        silent = None if health.state == "ok" else health.for_seconds
        health_row = (health.state, int(silent or 0))
        if health_row != self._stored_health:
            self.context.connection.execute(
                "UPDATE agent SET sampler_state = ?, sampler_silent_seconds = ?, heartbeat_at = ?, gpu_problem = ?",
                (health.state, silent, self.context.now(), problem),
            )
            self._stored_health = health_row

    def _check_own_state(self, now: float) -> None:
        """Report the longest turn, and stop if nobody needs this agent, or if its database or its
        lock was replaced: another agent may have the new one."""
        barrier = self.supervisor.barrier
        options = self.options
        if barrier.longest_seconds > self._stored_longest_turn:
            self._stored_longest_turn = barrier.longest_seconds
            self.context.connection.execute(
                "UPDATE agent SET longest_turn_seconds = ?, longest_turn_part = ?",
                (barrier.longest_seconds, barrier.longest_step),
            )
        for path, status in self._own_files.items():
            if not is_same_file(path, status):
                log.error("%s was replaced or removed; starting over with what is there", path)
                self.is_replaced = True
                self.is_stopping = True
        if self.on_second is not None:
            self.on_second(self)
        if options.duration_seconds is not None and now - self._began_at >= options.duration_seconds:
            self.is_stopping = True
        if self._is_needed():
            self._needed_at = now
        elif now - self._needed_at >= options.linger_seconds:
            log.info("no client needs an agent now")
            self.is_stopping = True

    def _is_needed(self) -> bool:
        is_busy = self.supervisor.is_busy() or self.sinks.is_busy() or self.studies.is_busy()
        return bool(self.options.recording or self._unread_runs or is_busy or has_views(self.workspace))

    def _open_store(self) -> sqlite3.Connection:
        path = self.workspace.database
        try:
            return open_writer(path, self._describe)
        except StoreCorruptError as error:
            aside = set_aside(path, self.started_at)
            connection = open_writer(path)
            now = self.started_at
            text = f"the database was damaged and set aside as {aside.name}; a new one was created"
            add_event(connection, NewEvent("database_replaced", text, severity="error"), now=now)
            log.error("%s; set aside as %s", error, aside)
            return connection

    def _describe(self, doing: str | None = None, *, ready: bool = False) -> None:
        """Write into the lock's file who holds it, and what clients have to wait for. A waiting
        client goes on as soon as it reads ``ready``."""
        self.lock.describe(
            {
                **self.identity._asdict(),
                "version": VERSION,
                "started_at": self.started_at,
                "recording": self.options.recording,
                "ready": ready,
                "doing": doing,
            }
        )

    def _write_own_row(self) -> None:
        values = (*self.identity, VERSION, self.started_at, self.context.now(), self.options.recording)
        self.context.connection.execute(
            "INSERT OR REPLACE INTO agent (id, pid, start_ticks, boot_id, version, started_at, "
            "heartbeat_at, recording, interval_seconds) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, self.options.interval_seconds),
        )

    def _leave(self) -> None:
        try:
            self.context.recorder.flush()
            self.context.connection.execute("UPDATE agent SET ended_at = ?", (self.context.now(),))
        except sqlite3.OperationalError as error:
            log.warning("the end of this agent cannot be recorded: %s", error)
        self.context.connection.close()
        log.info("agent ended")
