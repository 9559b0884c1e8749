"""The agent's loop: one thread, woken by the sampler, by commands, by the end of an executor, or by
time."""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gputui.agent.agent_lock import AgentLock
from gputui.agent.children import Sinks, Studies
from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.doorbell import Wakeups
from gputui.agent.error_barrier import roll_back
from gputui.agent.group_access import GroupAccess
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.execution import note_report, read_rest
from gputui.agent.lifecycle.rebuild import follow_moved_home, rebuild
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.maintenance import Maintenance, note_predecessor
from gputui.agent.notify.news import News
from gputui.agent.notify.outbox import Outbox
from gputui.agent.own_state import AgentOptions, EndConditions, SelfReport
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, Inventory
from gputui.machine.sampler_client import SamplerClient, SamplerCommand
from gputui.metrics.ingest import PUMP_SECONDS
from gputui.runs.agent_process import agent_argv, has_views
from gputui.store.database import StoreCorruptError, open_writer, set_aside
from gputui.store.events import NewEvent, add_event
from gputui.version import VERSION

log = logging.getLogger(__name__)

# Poll interval for commands, in case a notification was lost.
COMMAND_SECONDS = 1.0
MAINTENANCE_SECONDS = 1.0  # as often as samples come
# Poll interval for the metrics files of live runs; lines in between are stored in one transaction.
INTAKE_SECONDS = 0.25
# Budget for the files of live attempts in a turn that also reads those of ended ones.
SHORT_PUMP_SECONDS = 0.005
# The share of the time to the next tick within which work is due now.
TICK_SHARE = 0.9
OCCUPANTS_SECONDS = 1.0  # the simulator reads them once per sample
UNWRITABLE_SECONDS = 0.5  # a full disk is seldom freed sooner
RESTING_SECONDS = 0.05  # twenty turns a second, where a failed step would cause thousands


class Agent:
    """One agent, from taking the lock to its end.

    Attributes:
        on_second: called once a second after samples are stored.
        is_stopping: the loop ends after this turn.
        is_replaced: it ends because its database or its folder was exchanged.
        due_times: when each part of a turn is due (monotonic seconds), by its name.
        unread_runs: ended runs that were read back from their folders, without their metrics.
        unwritable: why the newest turn could not write, None if it could.
    """

    def __init__(
        self,
        workspace: Workspace,
        options: AgentOptions,
        lock: AgentLock,
        *,
        on_second: Callable[[Agent], None] | None = None,
    ) -> None:
        self.options = options
        self.on_second = on_second
        self.is_stopping = False
        self.is_replaced = False
        self.report = SelfReport(lock, options)
        connection = open_store(workspace, self.report)
        own_files = {workspace.database: workspace.database.stat(), workspace.agent_lock: os.fstat(lock.descriptor)}
        self.wakeups = Wakeups(workspace.runs)
        interval = options.interval_seconds
        self.context = AgentContext.of(connection, workspace, wake=self.wakeups.ring, interval_seconds=interval)
        self.supervisor = Supervisor(self.context, self.wakeups.selector)
        self.upkeep = Upkeep(self.context, self.supervisor, interval)
        now = self.context.monotonic()
        self.end_conditions = EndConditions(options, own_files, now)
        self.due_times = dict.fromkeys(("metrics", "commands", "maintenance"), now)
        is_simulated = workspace.scenario.exists()
        if is_simulated:
            self.due_times["occupants"] = now
        command = sampler_command(workspace, interval, is_simulated=is_simulated)
        self.sampler = SamplerClient(command, workspace.agent_log)
        self.unread_runs: list[str] = []
        self.unwritable: str | None = None

    def run(self) -> None:
        """Run until a signal arrives, the duration is over, or no client needs the agent."""
        self._catch_signals()
        self.wakeups.listen()
        with self.supervisor.barrier.guard("looking for a former agent", is_run=False):
            # Before the row of the former agent is overwritten.
            note_predecessor(self.context)
        self.report.write_row(self.context)
        self.report.describe()
        self.wakeups.doorbell.start()
        self._begin()
        self.sampler.start()
        self.wakeups.selector.register(self.sampler.fileno(), selectors.EVENT_READ, data=None)
        self.report.describe(ready=True)
        log.info("agent %s started, pid %d", VERSION, os.getpid())
        self.context.janitor.start()
        try:
            self._loop()
        finally:
            self.context.janitor.stop()
            self.wakeups.doorbell.stop()
            self.sampler.close()
            self.upkeep.close()
            if self.options.output is not None:
                self.options.output.close()
            self._leave()

    def _begin(self) -> None:
        """Continue where the former agent ended. Each step fails alone: an unexpected error must
        not keep the agent from starting. Raises sqlite3.Error if the database itself fails."""

        def read_runs_back() -> None:
            self.report.describe("reading runs back from their folders")
            follow_moved_home(self.context)
            self.unread_runs += rebuild(self.context)
            self.report.describe()

        steps: dict[str, Callable[[], object]] = {
            "reading runs back": read_runs_back,
            "news": self.upkeep.news.begin,
            "maintenance": self.upkeep.maintenance.begin,
            "adoption": self.supervisor.adopt,
            "alerts": self.upkeep.alert_evaluation.begin,
        }
        for name, step in steps.items():
            with self.supervisor.barrier.guard(name, is_run=False):
                step()

    def _loop(self) -> None:
        barrier = self.supervisor.barrier
        # The time to linger counts from here, not from before a long start.
        self.end_conditions.begin(self.context.monotonic())
        while not self.is_stopping:
            next_due = min(*self.due_times.values(), self.supervisor.next_due())
            pause = max(0.0, next_due - self.context.monotonic())
            ready = {key.fd for key, _ in self.wakeups.selector.select(pause)}
            if self.wakeups.answer(ready):
                self._hasten("commands", self.context.monotonic())
                if self.context.ingest.has_answers():
                    self._hasten("metrics", self.context.monotonic())
            barrier.begin_turn()
            self.context.budget.begin()
            try:
                with self.context.janitor.tidying.writing:
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
        due_times = self.due_times
        barrier.run("noticing ends", self.supervisor.notice_ends)
        is_tick = self.sampler.fileno() in ready and barrier.run("samples", self._read_sampler)
        if is_tick:
            self._note_gpus()
        now = self.context.monotonic()
        # Work that is due before the sampler's next tick is done now: one wake-up a second serves
        # all.
        soon = now
        if is_tick:
            soon += TICK_SHARE * min(1.0, self.options.interval_seconds)
        if now >= due_times["metrics"]:
            self._read_metrics(now)
        if soon >= due_times["commands"]:
            self._answer_commands(now)
        self.supervisor.advance()
        if soon >= due_times["maintenance"]:
            self._maintain_in_time(now)
        # Only simulated GPUs, which a scenario file in the state directory asks for, have to be told.
        if now >= due_times.get("occupants", math.inf):
            due_times["occupants"] = now + OCCUPANTS_SECONDS
            barrier.run("occupants", lambda: self.sampler.send_occupants(self.supervisor.occupants()))

    def _read_metrics(self, now: float) -> None:
        """Read metrics for as long as a turn may take: again at once if there is more, else when new lines may be
        there."""
        due_at = math.inf
        if self.supervisor.attempts:
            due_at = now + INTAKE_SECONDS
        self.due_times["metrics"] = due_at
        if self.supervisor.barrier.run("metrics", self._pump):
            self.due_times["metrics"] = now

    def _answer_commands(self, now: float) -> None:
        # Without notifications of commands, only a look tells that there is one.
        seconds = COMMAND_SECONDS if self.wakeups.doorbell.is_heard else INTAKE_SECONDS
        self.due_times["commands"] = now + seconds
        if self.supervisor.barrier.run("commands", partial(dispatch.answer_all, self.supervisor)):
            self.end_conditions.needed_at = now

    def _maintain_in_time(self, now: float) -> None:
        """Do the upkeep, or put it off to the next turn if this one has taken its time."""
        if self.context.budget.postpones("maintenance"):
            self.due_times["maintenance"] = now
            return
        self.due_times["maintenance"] = now + MAINTENANCE_SECONDS
        if self.supervisor.attempts:
            self._hasten("metrics", now + INTAKE_SECONDS)
        self._maintain(now)

    def _hasten(self, what: str, at: float) -> None:
        self.due_times[what] = min(self.due_times[what], at)

    def _pause(self, unwritable: str | None, *, has_skipped_step: bool) -> None:
        """Sleep after a turn in which something failed. A selector would not wait, because its
        descriptors stay ready until they are read."""
        if unwritable is not None and unwritable != self.unwritable:
            # Logged once: on a full disk, the log would fill up too.
            log.warning("the database cannot be written now: %s; see whether its disk is full", unwritable)
        elif unwritable is None and self.unwritable is not None:
            log.info("the database can be written again")
        self.unwritable = unwritable
        if unwritable is not None:
            time.sleep(UNWRITABLE_SECONDS)
        elif has_skipped_step:
            time.sleep(RESTING_SECONDS)

    def _catch_signals(self) -> None:
        def ask_to_stop(_number: int, _frame: object) -> None:
            self.is_stopping = True

        signal.set_wakeup_fd(self.wakeups.write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ask_to_stop)
        if self.options.recording:
            signal.signal(signal.SIGHUP, ask_to_stop)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

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
        if self.context.janitor.tidying.is_log_late:
            return False
        # A turn has time for one long file, and those of ended attempts come first.
        is_short = self.supervisor.is_reading_rest()
        seconds = SHORT_PUMP_SECONDS if is_short else PUMP_SECONDS
        report = self.context.ingest.pump(budget_seconds=seconds)
        note_report(self.context, report)
        if self.unread_runs and not is_short:
            rest = read_rest(self.context, self.unread_runs[0], PUMP_SECONDS)
            if not rest.more and not rest.awaits:
                del self.unread_runs[0]
        return report.more or bool(self.unread_runs)

    def _maintain(self, now: float) -> None:
        barrier = self.supervisor.barrier
        barrier.run("the sampler", lambda: self._watch_sampler(now))
        self.upkeep.poll(now)
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
        self.report.note_sampler(self.context, health, problem)

    def _check_own_state(self, now: float) -> None:
        """Report the longest turn, and stop if nobody needs this agent, or if its database or its
        lock was replaced: another agent may have the new one."""
        self.report.note_longest_turn(self.context, self.supervisor.barrier)
        if self.end_conditions.is_replaced():
            self.is_replaced = True
            self.is_stopping = True
        if self.on_second is not None:
            self.on_second(self)
        if self.end_conditions.is_over(now):
            self.is_stopping = True
        if self._is_needed():
            self.end_conditions.needed_at = now
        elif self.end_conditions.is_unneeded(now):
            log.info("no client needs an agent now")
            self.is_stopping = True

    def _is_needed(self) -> bool:
        is_busy = self.supervisor.is_busy() or self.upkeep.is_busy()
        return bool(self.options.recording or self.unread_runs or is_busy or has_views(self.context.workspace))

    def _leave(self) -> None:
        try:
            self.context.recorder.flush()
            self.context.connection.execute("UPDATE agent SET ended_at = ?", (self.context.now(),))
        except sqlite3.OperationalError as error:
            log.warning("the end of this agent cannot be recorded: %s", error)
        self.context.connection.close()
        log.info("agent ended")


class Upkeep:
    """The parts of the agent that have a turn each second, beside the supervisor."""

    def __init__(self, context: AgentContext, supervisor: Supervisor, interval_seconds: float) -> None:
        self.supervisor = supervisor
        self.alert_evaluation = AlertEvaluation(context, supervisor.running, interval_seconds)
        self.news = News(context, Outbox(context))
        self.maintenance = Maintenance(context)
        self.group_access = GroupAccess(context)
        self.sinks = Sinks(context)
        self.studies = Studies(context)

    def poll(self, now: float) -> None:
        """Give each part its turn; each fails alone."""
        barrier = self.supervisor.barrier
        living = [live.record for live in self.supervisor.attempts.values()]
        barrier.run("maintenance", lambda: self.maintenance.poll(now, living))
        barrier.run("group access", self.group_access.poll)
        barrier.run("alerts", self.alert_evaluation.poll)
        barrier.run("exports", self.sinks.poll)
        barrier.run("studies", self.studies.poll)
        barrier.run("news", self.news.poll)

    def is_busy(self) -> bool:
        return self.sinks.is_busy() or self.studies.is_busy()

    def close(self) -> None:
        self.sinks.close()
        self.studies.close()
        self.news.outbox.close()


def open_store(workspace: Workspace, report: SelfReport) -> sqlite3.Connection:
    """The store for writing. A damaged one is set aside for a new one."""
    path = workspace.database
    try:
        return open_writer(path, report.describe)
    except StoreCorruptError as error:
        now = report.started_at
        aside = set_aside(path, now)
        connection = open_writer(path)
        text = f"the database was damaged and set aside as {aside.name}; a new one was created"
        add_event(connection, NewEvent("database_replaced", text, severity="error"), now=now)
        log.error("%s; set aside as %s", error, aside)
        return connection


def sampler_command(workspace: Workspace, interval_seconds: float, *, is_simulated: bool) -> SamplerCommand:
    """The command of an agent's sampler."""
    command = SamplerCommand(
        source="nvml",
        state_dir=workspace.state,
        interval_seconds=interval_seconds,
        successor=(*agent_argv(workspace)[1:], "--successor"),
    )
    if is_simulated:
        return replace(command, source="simulated", scenario=workspace.scenario)
    return command
