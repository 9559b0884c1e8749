"""The supervisor: starts queued runs, steps active runs through their phases, and adopts those of a former agent.

The database has the intent, executors have the facts. No decision depends on memory alone, so that the successor of an
agent that was killed at any line continues.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier, Parts
from gputui.agent.health.log_bounds import AttemptFolder
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.jobs import Job
from gputui.agent.lifecycle import attempt_launch, execution, postmortem, run_files, sweep
from gputui.agent.lifecycle.active_run import (
    ActiveRun,
    ActiveRuns,
    Adopting,
    LiveAttempt,
    Postmortem,
    Running,
    Starting,
    Sweeping,
)
from gputui.agent.lifecycle.admission import Admission, give_up
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys
from gputui.agent.lifecycle.release import LOOK_SECONDS, GpuRelease
from gputui.agent.lifecycle.removal import Removal
from gputui.agent.lifecycle.run_files import resolved_run
from gputui.agent.lifecycle.waiting import Preconditions, ReadinessChecks, RecoveryWaits
from gputui.agent.notify.outbox import Outbox
from gputui.machine.gpu_model import Occupant
from gputui.recovery.checkpoints.search import CheckpointChoice, CheckpointSearch
from gputui.runs import notices, repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.executors.process import ExecutorProcess, find, start
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.identity import ProcessIdentity, has_open, is_alive
from gputui.runs.repository import transaction
from gputui.runs.shim import PASSING
from gputui.runs.spec import SpecError, spec_of
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import is_locked
from gputui.store.events import add_event
from gputui.store.gpu_use import peak_bytes
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run, active_run_count, get_run, runs_in, unknown_runs

log = logging.getLogger(__name__)

# Budget per turn for unread metrics of ended attempts.
READ_SECONDS = 0.02


@dataclass(slots=True)
class Supervisor:
    """All runs of one state directory."""

    context: AgentContext
    selector: selectors.BaseSelector
    runs: ActiveRuns = field(default_factory=ActiveRuns)
    needs_schedule: bool = True
    has_more_to_start: bool = False
    # Runs that this round has not stepped yet, the next one last: a round may take several turns.
    unstepped: list[str] = field(default_factory=list)
    # Searches for checkpoints, by the id of the command that waits for the result.
    searches: dict[int, tuple[CheckpointSearch, Job[CheckpointChoice]]] = field(default_factory=dict)
    # Number of failed writes by command id.
    failed_writes: dict[int, int] = field(default_factory=dict)
    removal: Removal = field(init=False)
    guard: ErrorBarrier = field(init=False)
    parts: Parts = field(init=False)
    release: GpuRelease = field(init=False)
    health: HealthMonitor = field(init=False)
    admission: Admission = field(init=False)
    waits: RecoveryWaits = field(init=False)
    outbox: Outbox = field(init=False)
    surveys: CheckpointSurveys = field(init=False)
    readiness_checks: ReadinessChecks = field(init=False)

    def __post_init__(self) -> None:
        context = self.context
        self.removal = Removal(context)
        self.surveys = CheckpointSurveys(context)
        self.guard = ErrorBarrier(context, self.runs)
        self.parts = Parts(self.guard)
        self.release = GpuRelease(context, self.runs, GpuLocks.of(context.workspace))
        self.readiness_checks = ReadinessChecks(context, self.runs, partial(give_up, context))
        self.admission = Admission(
            context, self.runs, self.guard, self.release, self._spawn, self.readiness_checks.may_start
        )
        self.waits = RecoveryWaits(context, self.runs, Preconditions(context), self.guard, self.admission.is_understood)
        self.outbox = Outbox(context)
        self.health = HealthMonitor(context)

    # --- adoption -------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Adopt every run of a former agent that may have live processes."""
        states = [state for state in RunState if state.has_attempt]
        for run in (*runs_in(self.context.connection, *states), *unknown_runs(self.context.connection)):
            self.runs.of(run.run_id).phase = Adopting()
        self._adopt_more()
        self._adopt_releases()

    def _adopt_releases(self) -> None:
        """Continue to release the GPUs of ended attempts."""
        connection = self.context.connection
        leased: dict[str, list[str]] = {}
        for uuid, lease in repository.leases(connection).items():
            for run_id in lease.run_ids:
                leased.setdefault(run_id, []).append(uuid)
        for run_id, uuids in leased.items():
            holder = get_run(connection, run_id)
            if self.runs.attempt(run_id) is None and (holder is None or holder.state.is_over):
                self.release.begin(run_id, None if holder is None else holder.attempt, dict.fromkeys(uuids))
        # A recovering run may have left a GPU, and its lease, to an unkillable process.
        going_on = json.dumps([state for state in RunState if not state.is_over])
        ended = connection.execute(
            "SELECT a.run_id, a.number, a.gpus FROM attempts AS a JOIN runs AS r USING (run_id) "
            "WHERE a.ended_at IS NOT NULL AND a.gpus != '[]' AND r.state IN (SELECT value FROM json_each(?))",
            (going_on,),
        ).fetchall()
        scan = self.context.scanner.scan() if ended else None
        for run_id, number, gpus in ended:
            if scan is not None and scan.processes_of(self.context.workspace.run_dir(run_id), number):
                self.release.begin(run_id, number, dict.fromkeys(json.loads(gpus)))

    def _adopt_more(self) -> None:
        """Adopt runs that are still in the phase Adopting; a failure is retried later."""
        for active in self.runs:
            if isinstance(active.phase, Adopting) and not self.guard.is_resting(active.run_id):
                with self.guard.around(active.run_id):
                    self._adopt(active)

    def _adopt(self, active: ActiveRun) -> None:
        connection, run_id = self.context.connection, active.run_id
        run = get_run(connection, run_id)
        if run is None or not run.state.has_attempt:
            active.phase = None
            return
        record = get_attempt(connection, run_id, run.attempt)
        if record is None or record.ended_at is not None:
            cause = "its attempt is not in the database" if record is None else "its attempt had ended"
            if run.state is RunState.UNKNOWN:
                cause = f"its state in the database was none that gputui knows, and {cause}"
            with transaction(connection):
                repository.move(connection, run, RunState.FAILED, cause=cause, now=self.context.now())
            active.phase = None
            return
        if run.state is RunState.UNKNOWN:
            target = RunState.STARTING if record.started_at is None else RunState.RUNNING
            cause = "its state in the database was none that gputui knows; its attempt has not ended"
            with transaction(connection):
                repository.move(connection, run, target, cause=cause, now=self.context.now())
        kind = self._kind(run)
        if record.executor is not None:
            executor_process: ProcessIdentity | None = ProcessIdentity(*record.executor)
        else:
            executor_process = find(kind, self.context.workspace.run_dir(run_id), record.number)
        folder = attempt_launch.attempt_dir(self.context.workspace, run_id, record.number)
        if (
            executor_process is not None
            and is_alive(executor_process)
            and has_open(executor_process.pid, folder / "attempt.lock") is False
        ):
            self._leave_to_original(active, run, executor_process)
            return
        executor = ExecutorProcess(executor_process, folder, kind)
        begun = (folder / "started.json").exists() or (folder / "exit.json").exists()
        if executor_process is None and not begun:
            # An executor that was killed too may have had no disk space for its record.
            begun = bool(kind.processes(self.context.scanner.scan(), self.context.workspace.run_dir(run_id), record))
        is_lost = kind.is_replaceable and not executor.is_alive and not (folder / "exit.json").exists()
        if is_lost or (executor_process is None and not begun):
            # The former agent died before it started the executor. An executor refuses to run twice.
            self._spawn(record, kind)
            live = self.runs.attempt(run_id)
            if record.stop_requested is not None and live is not None:
                live.executor.ask_to_end(at_once=record.stop_requested == KILL)
            return
        self._watch(LiveAttempt(record, executor))
        if executor_process is not None and record.executor is None:
            repository.set_executor(connection, run_id, record.number, executor_process)
        if record.stop_requested is not None:
            executor.ask_to_end(at_once=record.stop_requested == KILL)

    def _leave_to_original(self, active: ActiveRun, run: Run, process: ProcessIdentity) -> None:
        """Stop a run whose folder is a copy: its process serves the original folder, and must not be touched."""
        now = self.context.now()
        cause = f"this is a copy: its process, pid {process.pid}, belongs to the folder that it was copied from"
        with transaction(self.context.connection) as connection:
            repository.end_attempt(connection, run.run_id, run.attempt, state="stopped", ended_at=now, exit_record=None)
            repository.move(connection, run, RunState.STOPPED, cause=cause, now=now)
            repository.release_leases(connection, run.run_id)
            add_event(connection, "stopped", cause, now=now, severity="warning", run_id=run.run_id)
        active.phase = None

    # --- one turn of the loop -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do everything that is due. Called often; cheap if nothing changed."""
        self.parts.do("noticing ends", self.notice_ends)
        self.advance()

    def notice_ends(self) -> None:
        """Step runs with an attempt through their phases, as many as the turn has time for. A failed write of one run
        does not keep the others from ending. Raises the first sqlite3.OperationalError, or at once if the database is
        locked."""
        self.runs.forget_idle()
        self._adopt_more()
        first: sqlite3.OperationalError | None = None
        # All attempts that end in this turn share one budget.
        read_until = self.context.monotonic() + (0.0 if self.context.janitor.is_log_late else READ_SECONDS)
        if not self.unstepped:
            self.unstepped = [run.run_id for run in self.runs][::-1]
        while self.unstepped:
            run = self.runs.get(self.unstepped.pop())
            if run is None or run.attempt is None or self.guard.is_resting(run.run_id):
                continue
            try:
                with self.guard.around(run.run_id):
                    self.step(run, run.attempt, read_until)
            except sqlite3.OperationalError as error:
                if is_locked(error):
                    raise
                first = first or error
            if self.context.turn.is_spent():
                break
        if first is not None:
            raise first

    def step(self, run: ActiveRun, attempt: LiveAttempt, read_until: float) -> None:
        """Advance a run with an attempt to its next phase, if that is reached. Raises what the phase raises; the phase
        is then tried again."""
        if isinstance(run.phase, Starting | Running):
            run.phase = execution.step(attempt, run.phase, self.context)
        if isinstance(run.phase, Sweeping):
            try:
                run.phase = sweep.step(attempt, run.phase, self.context, read_until=read_until)
            except SpecError:
                if self._fail_unreadable(run.run_id, attempt):
                    self._leave_attempt(run, attempt)
        elif isinstance(run.phase, Postmortem):
            run.phase = postmortem.step(run, run.phase, self.context, self.admission.availability)
            if run.phase is None:
                self._leave_attempt(run, attempt)

    def _leave_attempt(self, run: ActiveRun, attempt: LiveAttempt) -> None:
        """Drop an ended attempt and begin to release its GPUs."""
        run.attempt = run.phase = None
        record = attempt.record
        baseline = {uuid: attempt.baseline_bytes.get(uuid) for uuid in record.gpus}
        self.release.begin(record.run_id, record.number, baseline)
        self.needs_schedule = True

    def _fail_unreadable(self, run_id: str, attempt: LiveAttempt) -> bool:
        """End the attempt of a run whose specification this version cannot read; False if it can."""
        run = get_run(self.context.connection, run_id)
        if run is None or self.admission.is_understood(run):
            return False
        repository.end_attempt(
            self.context.connection,
            run_id,
            attempt.record.number,
            state="failed",
            ended_at=self.context.now(),
            exit_record=None,
        )
        return True

    def advance(self) -> None:
        """Act on the state of all runs, part by part. Raises sqlite3.Error if nothing can be written."""
        parts = self.parts
        self.context.jobs.turn()
        running = self.runs.running()
        parts.do("watching", lambda: self.health.turn(running))
        parts.do("checkpoints", lambda: self.surveys.turn(running))
        parts.do("phases", lambda: self._end_phases(running))
        parts.do("notices", self.outbox.turn)
        is_one_drained = parts.do("draining", self.release.turn)
        is_one_over = parts.do("waits", self.waits.turn)
        is_one_checked = self.readiness_checks.is_one_over() or self.context.ingest.ends.has_new()
        self.needs_schedule = self.needs_schedule or bool(is_one_drained or is_one_over or is_one_checked)
        if self.needs_schedule and self.context.turn.postpones("starting"):
            self.has_more_to_start = True
        elif self.needs_schedule:
            self.needs_schedule = False
            is_done = parts.do("starting", self.admission.turn)
            self.has_more_to_start = is_done is False
            # A part that failed is tried again in the next turn.
            self.needs_schedule = not is_done

    def _end_phases(self, running: Sequence[LiveAttempt]) -> None:
        """Stop the attempts whose next phase may begin. Raises sqlite3.Error."""
        for live in running:
            resolved = live.resolved
            if resolved is None or not resolved.spec.phases or live.record.stop_requested is not None:
                continue
            run = get_run(self.context.connection, live.record.run_id)
            if run is None or run.state is not RunState.RUNNING:
                continue
            following = run_files.next_phase(self.context.connection, resolved.spec, live.record)
            if following is not None:
                why = f"phase {following.number} of {len(resolved.spec.phases)} begins"
                self.stop(run, intent=run_files.PHASE_INTENT, actor="agent", at_once=False, reason=why)

    def folders(self) -> list[AttemptFolder]:
        """The folders of all live attempts."""
        records = [attempt.record for attempt in self.runs.attempts()]
        return [
            AttemptFolder(
                record.run_id,
                record.number,
                attempt_launch.attempt_dir(self.context.workspace, record.run_id, record.number),
            )
            for record in records
        ]

    def next_due(self) -> float | None:
        """Monotonic time of the next timed action, or None."""
        if (
            self.unstepped
            or self.has_more_to_start
            or self.health.waiting
            or (self.is_reading_rest() and not self.context.janitor.is_log_late)
        ):
            return self.context.monotonic()
        if any(isinstance(run.phase, Sweeping) and run.phase.since is not None for run in self.runs):
            return self.context.monotonic() + LOOK_SECONDS
        pause, due = self.release.next_look_seconds(), self.waits.next_due()
        if pause is None:
            return due
        return self.context.monotonic() + pause if due is None else min(due, self.context.monotonic() + pause)

    def is_reading_rest(self) -> bool:
        """Whether an ended attempt has unread metrics."""
        return any(isinstance(run.phase, Sweeping) and run.phase.is_reading_rest for run in self.runs)

    def is_busy(self) -> bool:
        """Whether a run needs an agent."""
        return bool(
            active_run_count(self.context.connection)
            or self.runs.attempts()
            or self.runs.releasing()
            or self.context.jobs.is_busy
            or notices.is_owing(self.context.connection)
            or self.context.janitor.has_lines
        )

    # --- what the command handlers call -------------------------------------------------------------------------------

    def stop(
        self,
        run: Run,
        *,
        intent: str,
        actor: str,
        at_once: bool,
        reason: str | None = None,
        note: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask a run to end; its end is noticed like any other. ``reason`` is given by a study; ``note`` writes in the
        same transaction."""
        now = self.context.now()
        live = self.runs.attempt(run.run_id)
        with transaction(self.context.connection):
            # An attempt that is not adopted yet is asked at its adoption.
            if run.state.has_attempt:
                noted = KILL if at_once else intent
                repository.request_stop(self.context.connection, run.run_id, run.attempt, noted)
                if run.state is not RunState.STOPPING:
                    cause = reason or intent
                    repository.move(self.context.connection, run, RunState.STOPPING, cause=cause, actor=actor, now=now)
                    add_event(
                        self.context.connection,
                        "stop_requested",
                        f"{actor} asked it to stop",
                        now=now,
                        run_id=run.run_id,
                        attempt=run.attempt,
                    )
                if live is None:
                    # It was not adopted while its state was unknown.
                    self.runs.of(run.run_id).phase = Adopting()
            else:
                cause = reason or f"stopped by {actor}"
                repository.move(self.context.connection, run, RunState.STOPPED, cause=cause, actor=actor, now=now)
                repository.release_leases(self.context.connection, run.run_id)
                add_event(self.context.connection, "stopped", cause, now=now, run_id=run.run_id)
            note()
        if live is not None:
            live.executor.ask_to_end(at_once=at_once)
            if live.checkpoint_watch is not None:
                # An up-to-date ledger shows what the stop would lose.
                live.checkpoint_watch.due_at = self.context.monotonic()
        self.needs_schedule = True

    def repeat_stops(self) -> None:
        """After adoption, repeat stop signals that may not have been sent; an executor ignores the second."""
        for run in runs_in(self.context.connection, RunState.STOPPING):
            live = self.runs.attempt(run.run_id)
            if live is not None:
                live.executor.ask_to_end(at_once=live.record.stop_requested == KILL)

    def occupants(self) -> list[Occupant]:
        """The ranks of runs on their GPUs, for simulated GPUs."""
        occupants: list[Occupant] = []
        holders = [live for live in self.runs.attempts() if live.record.gpus]
        if not holders:
            return occupants
        scan = self.context.scanner.scan()
        for live in holders:
            uuids = live.record.gpus
            memory_bytes = peak_bytes(self.context.connection, live.record.run_id, live.record.number)
            for process in scan.processes_of(self.context.workspace.run_dir(live.record.run_id), live.record.number):
                if process.rank is not None:
                    uuid = uuids[process.rank % len(uuids)]
                    occupants.append(Occupant(uuid, process.pid, live.record.run_id, process.rank, memory_bytes))
        return occupants

    # --- starting -------------------------------------------------------------------------------------------------

    def _kind(self, run: Run) -> Executor:
        """The run's executor; the local one if its specification cannot be read."""
        try:
            return self.context.executors.of(spec_of(run).target)
        except SpecError:
            return self.context.executors.of(None)

    def _spawn(
        self,
        record: Attempt,
        kind: Executor,
        locks: Sequence[int] = (),
        baseline_bytes: Mapping[str, int | None] | None = None,
    ) -> None:
        # If this fails, the attempt is adopted like that of an agent that died here.
        self.runs.of(record.run_id).phase = Adopting()
        folder = attempt_launch.attempt_dir(self.context.workspace, record.run_id, record.number)
        try:
            run_dir = self.context.workspace.run_dir(record.run_id)
            started = start(kind, run_dir, record.number, locks)
        except (OSError, ExecutorGoneError) as error:
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            # Handled like an executor that died at once: the policy decides about a retry.
            log.error("%s: attempt %d cannot be started: %s", record.run_id, record.number, error)
            started = None
        # Watched before its identity is stored, which may fail.
        executor = ExecutorProcess(started, folder, kind)
        now = self.context.monotonic()
        self._watch(LiveAttempt(replace(record, executor=started), executor, baseline_bytes or {}, now))
        if started is not None:
            repository.set_executor(self.context.connection, record.run_id, record.number, started)

    def _watch(self, attempt: LiveAttempt) -> None:
        attempt.executor.watch(self.selector)
        run = get_run(self.context.connection, attempt.record.run_id)
        with contextlib.suppress(SpecError):
            attempt.resolved = None if run is None else resolved_run(self.context.workspace, run)
        self.runs.of(attempt.record.run_id).begin(attempt)
