"""The supervisor: starts queued runs, steps active runs through their phases, and adopts those of a
former agent.

The database has the intent, executors have the facts. No decision depends on memory alone, so that
the successor of an agent that was killed at any line continues.
"""

from __future__ import annotations

import json
import logging
import selectors
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import Parts
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle import execution, run_files
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
from gputui.agent.lifecycle.admission import Admission
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys
from gputui.agent.lifecycle.ending import end_attempt, machine_context
from gputui.agent.lifecycle.execution import findings_of
from gputui.agent.lifecycle.gpus import LOOK_SECONDS, GpuRelease
from gputui.agent.lifecycle.run_files import attempt_dir, resolved_run
from gputui.agent.lifecycle.waiting import ReadinessChecks, RecoveryWaits
from gputui.agent.outbox import Outbox
from gputui.machine.gpu_model import Occupant
from gputui.runs import notices, repository
from gputui.runs.executors.base import Executor, ExecutorGoneError
from gputui.runs.executors.process import ExecutorProcess, find, start
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.identity import ProcessIdentity, has_open, is_alive
from gputui.runs.shim import PASSING
from gputui.runs.spec import spec_of
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import is_locked
from gputui.store.gpu_use import peak_bytes
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run, active_run_count, get_run, runs_in

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
    parts: Parts = field(init=False)
    release: GpuRelease = field(init=False)
    health: HealthMonitor = field(init=False)
    admission: Admission = field(init=False)
    waits: RecoveryWaits = field(init=False)
    outbox: Outbox = field(init=False)
    surveys: CheckpointSurveys = field(init=False)
    readiness: ReadinessChecks = field(init=False)

    def __post_init__(self) -> None:
        context, runs = self.context, self.runs
        self.parts = Parts(context)
        self.surveys = CheckpointSurveys(context)
        self.outbox = Outbox(context)
        self.health = HealthMonitor(context)
        self.release = GpuRelease(context, runs, GpuLocks.of(context.workspace))
        self.readiness = ReadinessChecks(context, runs)
        self.admission = Admission(context, runs, self.parts, self.release, self._spawn, self.readiness.may_start)
        self.waits = RecoveryWaits(context, runs, self.parts, self.admission.is_understood)

    def adopt(self) -> None:
        """Adopt every run of a former agent that may have live processes, and continue to release
        the GPUs of ended attempts."""
        connection, workspace = self.context.connection, self.context.workspace
        for run in runs_in(connection, *[state for state in RunState if state.has_attempt]):
            self.runs.of(run.run_id).phase = Adopting()
        self._adopt_more()
        leased: dict[str, dict[str, None]] = {}
        for uuid, lease in repository.leases(connection).items():
            for run_id in lease.run_ids:
                leased.setdefault(run_id, {})[uuid] = None
        for run_id, uuids in leased.items():
            holder = get_run(connection, run_id)
            if holder is None or holder.state.is_over:
                self.release.begin(run_id, None if holder is None else holder.attempt, uuids)
        # A recovering run may have left a GPU, and its lease, to an unkillable process.
        going_on = json.dumps([state for state in RunState if not state.is_over])
        ended = connection.execute(
            "SELECT a.run_id, a.number, a.gpus FROM attempts AS a JOIN runs AS r USING (run_id) "
            "WHERE a.ended_at IS NOT NULL AND a.gpus != '[]' "
            "AND r.state IN (SELECT value FROM json_each(?))",
            (going_on,),
        ).fetchall()
        scan = self.context.scanner.scan() if ended else None
        for run_id, number, gpus in ended:
            if scan is not None and scan.processes_of(workspace.run_dir(run_id), number):
                self.release.begin(run_id, number, dict.fromkeys(json.loads(gpus)))

    def _adopt_more(self) -> None:
        """Adopt runs that are still in the phase Adopting; a failure is retried later."""
        for active in self.runs:
            if isinstance(active.phase, Adopting) and not self.parts.is_resting(active.run_id):
                with self.parts.around(active.run_id):
                    self._adopt(active)

    def _adopt(self, active: ActiveRun) -> None:
        connection, run_id = self.context.connection, active.run_id
        run = get_run(connection, run_id)
        if run is None or not run.state.has_attempt:
            active.phase = None
            return
        record = get_attempt(connection, run_id, run.attempt)
        assert record is not None and record.ended_at is None, "its attempt is not in the database"
        kind = self.context.executors.of(spec_of(run).target)
        run_dir = self.context.workspace.run_dir(run_id)
        folder = attempt_dir(self.context.workspace, run_id, record.number)
        process = ProcessIdentity(*record.executor) if record.executor else None
        process = process or find(kind, run_dir, record.number)
        lock = folder / "attempt.lock"
        if process is not None and is_alive(process) and has_open(process.pid, lock) is False:
            raise RuntimeError(f"pid {process.pid} serves another folder: this home is a copy")
        executor = ExecutorProcess(process, folder, kind)
        has_ended = (folder / "exit.json").exists()
        is_lost = kind.is_replaceable and not executor.is_alive and not has_ended
        if process is None and not has_ended and not (folder / "started.json").exists():
            # An executor that was killed too may have had no disk space for its record.
            is_lost |= not kind.processes(self.context.scanner.scan(), run_dir, record)
        if is_lost:
            # The former agent died before it started the executor, which refuses to run twice.
            self._spawn(record, kind)
        else:
            self._watch(LiveAttempt(record, executor))
            if process is not None and record.executor is None:
                repository.set_executor(connection, run_id, record.number, process)
        live = self.runs.attempt(run_id)
        if record.stop_requested is not None and live is not None:
            # The signal may not have been sent; an executor ignores the second.
            live.executor.ask_to_end(at_once=record.stop_requested == KILL)

    def _spawn(
        self,
        record: Attempt,
        kind: Executor,
        locks: Sequence[int] = (),
        baseline_bytes: Mapping[str, int | None] | None = None,
    ) -> None:
        # If this fails, the attempt is adopted like that of an agent that died here.
        run_id, number = record.run_id, record.number
        self.runs.of(run_id).phase = Adopting()
        try:
            started = start(kind, self.context.workspace.run_dir(run_id), number, locks)
        except (OSError, ExecutorGoneError) as error:
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            # Handled like an executor that died at once: the policy decides about a retry.
            log.error("%s: attempt %d cannot be started: %s", run_id, number, error)
            started = None
        # Watched before its identity is stored, which may fail.
        folder = attempt_dir(self.context.workspace, run_id, number)
        executor, now = ExecutorProcess(started, folder, kind), self.context.monotonic()
        record = replace(record, executor=started)
        self._watch(LiveAttempt(record, executor, baseline_bytes or {}, now))
        if started is not None:
            repository.set_executor(self.context.connection, run_id, number, started)

    def _watch(self, attempt: LiveAttempt) -> None:
        run = get_run(self.context.connection, attempt.record.run_id)
        assert run is not None
        attempt.resolved = resolved_run(self.context.workspace, run)
        attempt.executor.watch(self.selector)
        self.runs.of(run.run_id).begin(attempt)

    def turn(self) -> None:
        """Do everything that is due. Called often; cheap if nothing changed."""
        self.parts.do("noticing ends", self.notice_ends)
        self.advance()

    def notice_ends(self) -> None:
        """Step runs with an attempt through their phases, as many as the turn has time for. A
        failed write of one run does not keep the others from ending. Raises the first
        sqlite3.OperationalError, or at once if the database is locked."""
        self.runs.forget_idle()
        self._adopt_more()
        first: sqlite3.OperationalError | None = None
        # All attempts that end in this turn share one budget.
        seconds = 0.0 if self.context.janitor.is_log_late else READ_SECONDS
        read_until = self.context.monotonic() + seconds
        if not self.unstepped:
            self.unstepped = [run.run_id for run in self.runs][::-1]
        while self.unstepped:
            run = self.runs.get(self.unstepped.pop())
            if run is None or run.attempt is None or self.parts.is_resting(run.run_id):
                continue
            try:
                with self.parts.around(run.run_id):
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
        """Advance a run with an attempt to its next phase, if that is reached. Raises what the
        phase raises; the phase is then tried again."""
        context = self.context
        if isinstance(run.phase, Starting | Running):
            run.phase = execution.serve(attempt, run.phase, context)
        if isinstance(run.phase, Sweeping):
            run.phase = execution.sweep(attempt, run.phase, context, read_until=read_until)
        elif isinstance(run.phase, Postmortem):
            task, findings = run.phase.task, findings_of(run, run.phase, context)
            if findings is None:
                return
            assert attempt.resolved is not None
            gpus = self.admission.availability() or ()
            machine = machine_context(context, attempt.resolved, task.attempt, gpus)
            end_attempt(context, attempt.resolved, task, findings, machine)
            run.attempt = run.phase = None
            record = attempt.record
            baseline = {uuid: attempt.baseline_bytes.get(uuid) for uuid in record.gpus}
            self.release.begin(record.run_id, record.number, baseline)
            self.needs_schedule = True

    def advance(self) -> None:
        """Act on the state of all runs, part by part. Raises sqlite3.Error if nothing can be
        written."""
        parts = self.parts
        self.context.jobs.turn()
        running = self.runs.running()
        parts.do("watching", lambda: self.health.turn(running))
        parts.do("checkpoints", lambda: self.surveys.turn(running))
        parts.do("phases", lambda: self._end_phases(running))
        parts.do("notices", self.outbox.turn)
        is_due = (
            parts.do("draining", self.release.turn),
            parts.do("waits", self.waits.turn),
            self.context.jobs.has_news,
            self.context.ingest.ends.has_new(),
        )
        self.context.jobs.has_news = False
        self.needs_schedule = self.needs_schedule or any(is_due)
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
            phases = () if live.resolved is None else live.resolved.spec.phases
            if live.resolved is None or not phases or live.record.stop_requested is not None:
                continue
            run = get_run(self.context.connection, live.record.run_id)
            if run is None or run.state is not RunState.RUNNING:
                continue
            spec = live.resolved.spec
            following = run_files.next_phase(self.context.connection, spec, live.record)
            if following is not None:
                why = f"phase {following.number} of {len(phases)} begins"
                intent = run_files.PHASE_INTENT
                self.stop(run, intent=intent, actor="agent", at_once=False, reason=why)

    def next_due(self) -> float | None:
        """Monotonic time of the next timed action, or None."""
        now = self.context.monotonic()
        is_reading = self.is_reading_rest() and not self.context.janitor.is_log_late
        if self.unstepped or self.has_more_to_start or self.health.waiting or is_reading:
            return now
        pause = self.release.next_look_seconds()
        if any(phase.since is not None for phase in self.runs.sweeping()):
            pause = LOOK_SECONDS
        due = [self.waits.next_due(), None if pause is None else now + pause]
        return min((at for at in due if at is not None), default=None)

    def is_reading_rest(self) -> bool:
        """Whether an ended attempt has unread metrics."""
        return any(phase.is_reading_rest for phase in self.runs.sweeping())

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
        """Ask a run to end; its end is noticed like any other. ``reason`` is given by a study;
        ``note`` writes in the same transaction."""
        context, run_id, now = self.context, run.run_id, self.context.now()
        live = self.runs.attempt(run_id)
        with repository.transaction(context.connection) as connection:
            if not run.state.has_attempt:
                cause = reason or f"stopped by {actor}"
                target = RunState.STOPPED
                repository.move(connection, run, target, cause=cause, actor=actor, now=now)
                repository.release_leases(connection, run_id)
                context.note("stopped", cause, run_id)
            else:
                # An attempt that is not adopted yet is asked at its adoption.
                wanted = KILL if at_once else intent
                repository.request_stop(connection, run_id, run.attempt, wanted)
                if run.state is not RunState.STOPPING:
                    cause, target = reason or intent, RunState.STOPPING
                    repository.move(connection, run, target, cause=cause, actor=actor, now=now)
                    text = f"{actor} asked it to stop"
                    context.note("stop_requested", text, run_id, run.attempt)
            note()
        if live is not None:
            live.executor.ask_to_end(at_once=at_once)
            # An up-to-date ledger shows what the stop would lose.
            live.checkpoint_watch.due_at = context.monotonic()
        self.needs_schedule = True

    def occupants(self) -> list[Occupant]:
        """The ranks of runs on their GPUs, for simulated GPUs."""
        occupants: list[Occupant] = []
        records = [live.record for live in self.runs.attempts() if live.record.gpus]
        scan = self.context.scanner.scan() if records else None
        for record in records if scan is not None else ():
            run_id, uuids = record.run_id, record.gpus
            used = peak_bytes(self.context.connection, run_id, record.number)
            run_dir = self.context.workspace.run_dir(run_id)
            for process in scan.processes_of(run_dir, record.number) if scan is not None else ():
                if (rank := process.rank) is not None:
                    uuid = uuids[rank % len(uuids)]
                    occupants.append(Occupant(uuid, process.pid, run_id, rank, used))
        return occupants
