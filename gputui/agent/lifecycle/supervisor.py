"""The supervisor: starts queued runs, steps active runs through their phases, and adopts those of a
former agent.

The database has the intent, executors have the facts. No decision depends on memory alone, so that
the successor of an agent that was killed at any line continues.
"""

from __future__ import annotations

import logging
import math
import selectors
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle import execution, run_files
from gputui.agent.lifecycle.admission import Admission
from gputui.agent.lifecycle.attempt_end import end_attempt, machine_context
from gputui.agent.lifecycle.checkpoint_retention import CheckpointRetention
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys
from gputui.agent.lifecycle.gpus import GpuHolds, UsedGpus
from gputui.agent.lifecycle.live_attempt import LiveAttempt, Postmortem, Serving, Sweeping
from gputui.agent.lifecycle.postmortem import finish_postmortem
from gputui.agent.lifecycle.run_files import attempt_dir, resolved_run
from gputui.agent.lifecycle.source_search import SourceSearches
from gputui.agent.lifecycle.start_conditions import RecoveryWaits
from gputui.core import units
from gputui.machine.gpu_model import Occupant
from gputui.runs import notices, repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.executors.process import ExecutorProcess, find, start
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.identity import ProcessIdentity
from gputui.runs.processes import ProcessScan
from gputui.runs.shim import PASSING
from gputui.runs.stored_spec import spec_of
from gputui.store.attempts import Attempt, get_attempt, seconds_since_asked
from gputui.store.database import is_locked
from gputui.store.gpu_use import peak_bytes
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, PHASE_OVER, TIME_OVER, Run, active_run_count, get_run

log = logging.getLogger(__name__)

# Budget per turn for unread metrics of ended attempts.
READ_SECONDS = 0.02
# Poll interval for leftover processes that were asked to end.
LEFTOVERS_SECONDS = 0.1
_STATES = ", ".join(f"'{state}'" for state in RunState if state.has_attempt)
_RUNS_WITH_ATTEMPT = f"SELECT run_id FROM runs WHERE state IN ({_STATES}) ORDER BY run_id"  # noqa: S608


@dataclass(slots=True)
class Supervisor:
    """All runs of one state directory, and the parts that serve them.

    Attributes:
        selector: wakes the loop when an executor ends.
        attempts: those that may have live processes, by run id.
        needs_schedule: something has changed that may let a run start.
        has_more_to_start: the turn was spent before all runs that may were started.
        unstepped: runs that this round has not stepped yet, the next one last; a round may take several turns.
        unstepped_ends: the same of runs whose command has ended, which have rounds of their own.
    """

    context: AgentContext
    selector: selectors.BaseSelector
    attempts: dict[str, LiveAttempt] = field(default_factory=dict)
    needs_schedule: bool = True
    has_more_to_start: bool = False
    unstepped: list[str] = field(default_factory=list)
    unstepped_ends: list[str] = field(default_factory=list)
    barrier: ErrorBarrier = field(init=False)
    holds: GpuHolds = field(init=False)
    used_gpus: UsedGpus = field(init=False)
    health: HealthMonitor = field(init=False)
    admission: Admission = field(init=False)
    waits: RecoveryWaits = field(init=False)
    retention: CheckpointRetention = field(init=False)
    surveys: CheckpointSurveys = field(init=False)
    searches: SourceSearches = field(init=False)

    def __post_init__(self) -> None:
        context = self.context
        self.barrier = ErrorBarrier(context)
        self.retention = CheckpointRetention(context)
        self.surveys = CheckpointSurveys(context, self.retention.note_scan)
        self.searches = SourceSearches(context)
        self.health = HealthMonitor(context, self.barrier)
        self.holds = GpuHolds(context)
        self.used_gpus = UsedGpus(context)
        locks = GpuLocks.of(context.workspace)
        self.admission = Admission(context, self.barrier, self.holds, locks, self._spawn)
        self.waits = RecoveryWaits(context, self.barrier)

    def running(self) -> list[LiveAttempt]:
        """All attempts whose command is not known to have ended."""
        return [attempt for attempt in self.attempts.values() if attempt.is_running]

    def adopt(self) -> None:
        """Adopt the attempts of a former agent, and the GPUs that processes of ended attempts
        hold."""
        self._adopt_attempts()
        self.holds.adopt()

    def _adopt_attempts(self) -> None:
        """Adopt the attempts that are not watched: a former agent began them, or their executor was
        not started or did not serve them to the end. A failure is retried later."""
        rows = self.context.connection.execute(_RUNS_WITH_ATTEMPT).fetchall()
        for run_id in [row[0] for row in rows if row[0] not in self.attempts]:
            if not self.barrier.is_resting(run_id):
                with self.barrier.guard(run_id):
                    self._adopt(run_id)

    def _adopt(self, run_id: str) -> None:
        connection = self.context.connection
        run = get_run(connection, run_id)
        assert run is not None, "its attempt is unknown"
        record = get_attempt(connection, run_id, run.attempt)
        assert record is not None, "its attempt is unknown"
        assert record.ended_at is None, "its attempt is over"
        kind = self.context.executors.of(spec_of(run).target)
        run_dir = self.context.workspace.run_dir(run_id)
        folder = attempt_dir(self.context.workspace, run_id, record.number)
        if record.executor:
            process: ProcessIdentity | None = ProcessIdentity(*record.executor)
        else:
            process = find(kind, run_dir, record.number)
        executor = ExecutorProcess(process, folder, kind)
        if self._lacks_executor(record, executor, folder):
            # An executor refuses to run twice.
            self._spawn(record, kind)
        else:
            self._watch(LiveAttempt(record, executor, resolved_run(self.context.workspace, run)))
            if process is not None and record.executor is None:
                repository.set_executor(connection, run_id, record.number, process)
        if record.stop_requested is not None:
            # The signal may not have been sent; an executor ignores the second.
            self.attempts[run_id].executor.ask_to_end(at_once=record.stop_requested == KILL)

    def _lacks_executor(self, record: Attempt, executor: ExecutorProcess, folder: Path) -> bool:
        """Return whether an attempt needs an executor to be started: its own is gone and
        replaceable, or the former agent died before it started one."""
        if (folder / "exit.json").exists():
            return False
        if executor.kind.is_replaceable and not executor.is_alive:
            return True
        if executor.identity is not None or (folder / "started.json").exists():
            return False
        # An executor that was killed too may have had no disk space for its record.
        run_dir = self.context.workspace.run_dir(record.run_id)
        return not executor.kind.processes(self.context.scanner.scan(), run_dir, record)

    def _spawn(self, record: Attempt, kind: Executor, locks: Sequence[int] = ()) -> None:
        # If this fails, the attempt is adopted like that of an agent that died here.
        run_id = record.run_id
        number = record.number
        workspace = self.context.workspace
        run = get_run(self.context.connection, run_id)
        assert run is not None
        try:
            started = start(kind, workspace.run_dir(run_id), number, locks)
        except (OSError, ExecutorGoneError) as error:
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            # Handled like an executor that died at once: the policy decides about a retry.
            log.error("%s: attempt %d cannot be started: %s", run_id, number, error)
            started = None
        # Watched before its identity is stored, which may fail.
        executor = ExecutorProcess(started, attempt_dir(workspace, run_id, number), kind)
        record = replace(record, executor=started)
        resolved = resolved_run(workspace, run)
        self._watch(LiveAttempt(record, executor, resolved, self.context.monotonic()))
        if started is not None:
            repository.set_executor(self.context.connection, run_id, number, started)

    def _watch(self, attempt: LiveAttempt) -> None:
        attempt.executor.watch(self.selector)
        self.attempts[attempt.record.run_id] = attempt

    def poll(self) -> None:
        """Do everything that is due; cheap if nothing changed."""
        self.barrier.run("noticing ends", self.notice_ends)
        self.advance()

    def notice_ends(self) -> None:
        """Step runs with an attempt through their phases, as many as the turn has time for.

        A failed write of one run does not keep the others from ending. Raises the first
        sqlite3.OperationalError, or at once if the database is locked.
        """
        self._adopt_attempts()
        first_error: sqlite3.OperationalError | None = None
        # All attempts that end in this turn share one budget.
        seconds = 0.0 if self.context.janitor.tidying.is_log_late else READ_SECONDS
        read_until = self.context.monotonic() + seconds
        if not self.unstepped_ends:
            self.unstepped_ends = [run_id for run_id, live in self.attempts.items() if not live.is_running][::-1]
        if not self.unstepped:
            self.unstepped = [run_id for run_id, live in self.attempts.items() if live.is_running][::-1]
        # Ends come first; both kinds are stepped in every turn, however busy the machine is.
        for waiting in (self.unstepped_ends, self.unstepped):
            while waiting:
                error = self._step_alone(waiting.pop(), read_until)
                first_error = first_error or error
                if self.context.budget.is_spent():
                    break
        if first_error is not None:
            raise first_error

    def _step_alone(self, run_id: str, read_until: float) -> sqlite3.OperationalError | None:
        """Step one attempt; a failed write of the database is returned. Raises
        sqlite3.OperationalError if the database is locked."""
        attempt = self.attempts.get(run_id)
        if attempt is None or self.barrier.is_resting(run_id):
            return None
        try:
            with self.barrier.guard(run_id):
                self.step(attempt, read_until)
        except sqlite3.OperationalError as error:
            if is_locked(error):
                raise
            return error
        return None

    def step(self, attempt: LiveAttempt, read_until: float) -> None:
        """Advance an attempt to its next phase, if that is reached. Raises what the phase raises;
        the phase is then tried again."""
        context = self.context
        record = attempt.record
        if not attempt.is_running:
            execution.note_lateness(attempt, context)
        if isinstance(attempt.phase, Serving):
            following = execution.serve(attempt, attempt.phase, context)
            if following is None:
                # Another executor takes the place of one that did not serve it to the end.
                del self.attempts[record.run_id]
                return
            attempt.phase = following
        if isinstance(attempt.phase, Sweeping):
            attempt.phase = execution.sweep(
                attempt, attempt.phase, context, read_until=read_until, searches=self.searches
            )
        elif isinstance(attempt.phase, Postmortem):
            task = attempt.phase.task
            findings = finish_postmortem(attempt, attempt.phase, context)
            if findings is None:
                return
            gpus = self.admission.availability() or ()
            machine = machine_context(context, task, gpus)
            end_attempt(context, task, findings, machine)
            self.retention.note_scan(record.run_id)
            del self.attempts[record.run_id]
            context.jobs.drop(record.run_id, record.number)
            self.holds.begin(record.run_id, record.number, record.gpus)
            self.needs_schedule = True

    def advance(self) -> None:
        """Act on the state of all runs, part by part. Raises sqlite3.Error if nothing can be
        written."""
        barrier = self.barrier
        self.context.jobs.poll()
        running = self.running()
        barrier.run("watching", lambda: self.health.poll(running))
        barrier.run("checkpoints", lambda: self.surveys.poll(running))
        barrier.run("old checkpoints", self.retention.poll)
        barrier.run("files with metrics", lambda: self.searches.poll(running))
        barrier.run("phases", lambda: self._end_phases(running))
        barrier.run("time limits", lambda: self._end_at_limits(running))
        is_due = (
            barrier.run("held GPUs", self.holds.poll),
            barrier.run("waits", self.waits.poll),
            self.context.jobs.has_news,
        )
        self.context.jobs.has_news = False
        self.needs_schedule = self.needs_schedule or any(is_due)
        if self.needs_schedule and self.context.budget.postpones("starting"):
            self.has_more_to_start = True
        elif self.needs_schedule:
            self.needs_schedule = False
            is_done = barrier.run("starting", self.admission.poll)
            self.has_more_to_start = is_done is False
            # A part that failed is tried again in the next turn.
            self.needs_schedule = not is_done

    def _end_phases(self, running: Sequence[LiveAttempt]) -> None:
        """Stop the attempts whose next phase may begin. Raises sqlite3.Error."""
        for live in running:
            spec = live.resolved.spec
            if not spec.phases or live.record.stop_requested is not None:
                continue
            run = get_run(self.context.connection, live.record.run_id)
            if run is None or run.state is not RunState.RUNNING:
                continue
            following = run_files.next_phase(self.context.connection, spec, live.record)
            if following is not None:
                phase_number, _ = following
                why = f"phase {phase_number} of {len(spec.phases)} begins"
                with repository.transaction(self.context.connection):
                    self.note_stop(run, intent=PHASE_OVER, actor="agent", at_once=False, reason=why)
                self.signal_stop(run.run_id, at_once=False)

    def _end_at_limits(self, running: Sequence[LiveAttempt]) -> None:
        """Stop the runs that have trained for as long as they may. Raises sqlite3.Error."""
        connection = self.context.connection
        now = self.context.now()
        for live in running:
            limit_seconds = live.resolved.spec.time_limit_seconds
            run_id = live.record.run_id
            if limit_seconds is None or seconds_since_asked(connection, run_id, now) < limit_seconds:
                continue
            run = get_run(connection, run_id)
            if run is None or run.state not in (RunState.STARTING, RunState.RUNNING):
                continue
            why = f"its time limit of {units.duration(limit_seconds)}"
            with repository.transaction(connection):
                self.note_stop(run, intent=TIME_OVER, actor="agent", at_once=False, reason=why)
            self.signal_stop(run_id, at_once=False)

    def next_due(self) -> float:
        """Monotonic time of the next timed action; infinite if there is none."""
        now = self.context.monotonic()
        is_reading = self.is_reading_rest() and not self.context.janitor.tidying.is_log_late
        # What the last turn had no time for.
        is_behind = self.unstepped or self.unstepped_ends or self.has_more_to_start or self.health.waiting
        if is_behind or is_reading:
            return now
        sweeping_due = math.inf
        if any(phase.since is not None for phase in self._sweeping()):
            sweeping_due = now + LEFTOVERS_SECONDS
        return min(self.waits.next_due, self.holds.next_due(), sweeping_due)

    def _sweeping(self) -> list[Sweeping]:
        return [live.phase for live in self.attempts.values() if isinstance(live.phase, Sweeping)]

    def is_reading_rest(self) -> bool:
        """Return whether an ended attempt has unread metrics."""
        return any(phase.is_reading_rest for phase in self._sweeping())

    def is_busy(self) -> bool:
        """Return whether a run needs an agent."""
        context = self.context
        has_work = self.attempts or self.holds.entries or self.retention.noted
        if has_work or context.jobs.is_busy or context.janitor.tidying.has_lines:
            return True
        return active_run_count(context.connection) > 0 or notices.is_owing(context.connection)

    def note_stop(self, run: Run, *, intent: str, actor: str, at_once: bool, reason: str | None = None) -> RunState:
        """Store that a run is to end, in the caller's transaction; return its state then.

        `signal_stop` follows, and the end is noticed like any other. ``reason`` is given by a study.
        """
        context = self.context
        run_id = run.run_id
        now = self.context.now()
        connection = context.connection
        if not run.state.has_attempt:
            cause = reason or f"stopped by {actor}"
            repository.move(connection, run, RunState.STOPPED, cause=cause, actor=actor, now=now)
            repository.release_leases(connection, run_id)
            context.jobs.drop(run_id, run.attempt + 1)
            context.note("stopped", cause, run_id)
            return RunState.STOPPED
        # An attempt that is not adopted yet is asked at its adoption.
        request = KILL if at_once else intent
        repository.request_stop(connection, run_id, run.attempt, request)
        if run.state is not RunState.STOPPING:
            repository.move(connection, run, RunState.STOPPING, cause=reason or intent, actor=actor, now=now)
            context.note("stop_requested", f"{actor} asked it to stop", run_id, run.attempt)
        return RunState.STOPPING

    def signal_stop(self, run_id: str, *, at_once: bool) -> None:
        """Ask the executor of a run to end it, if it has one."""
        live = self.attempts.get(run_id)
        if live is not None:
            live.executor.ask_to_end(at_once=at_once)
            # An up-to-date ledger shows what the stop would lose.
            self.surveys.scan_soon(run_id, live.record.number)
        self.needs_schedule = True

    def occupants(self) -> list[Occupant]:
        """The ranks of runs on their GPUs, for simulated GPUs."""
        occupants: list[Occupant] = []
        records = [live.record for live in self.attempts.values() if live.record.gpus]
        if not records:
            return occupants
        scan = self.context.scanner.scan()
        for record in records:
            occupants += self._ranks_of(record, scan)
        return occupants

    def _ranks_of(self, attempt: Attempt, scan: ProcessScan) -> Iterator[Occupant]:
        """The living ranks of an attempt, each on its GPU."""
        since = self.context.now() if attempt.started_at is None else attempt.started_at
        used_bytes = peak_bytes(self.context.connection, attempt.run_id, attempt.number)
        run_dir = self.context.workspace.run_dir(attempt.run_id)
        for process in scan.processes_of(run_dir, attempt.number):
            rank = process.rank
            if rank is not None:
                yield Occupant(
                    attempt.gpus[rank % len(attempt.gpus)],
                    process.pid,
                    attempt.run_id,
                    rank=rank,
                    memory_bytes=used_bytes,
                    since=since,
                )
