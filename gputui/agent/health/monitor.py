"""The health monitor of live attempts: feeds their detectors, and writes and acts on what they
observe.

While metrics lines arrive, processes are read only for their memory. A finding is reported once. If
the run's policy says so, it ends the attempt: the intent is stored first, then stacks are dumped,
then the attempt is ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.health.gpu_reports import lost_gpu
from gputui.agent.health.incident_folder import incident_folder
from gputui.agent.health.stack_dump import DEADLINE_SECONDS, dump_stacks
from gputui.agent.health.watched import LINES_PER_LOOK, WatchedAttempt, check_setup, read_history, take_snapshot
from gputui.agent.jobs import JobKey, Purpose
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import attempt_dir
from gputui.core import units
from gputui.core.text import clean
from gputui.machine.procfs import available_bytes
from gputui.recovery.watch.activity import LOOK_SECONDS
from gputui.recovery.watch.leaks import MemorySample
from gputui.recovery.watch.rules import FINDINGS, Observation
from gputui.recovery.watch.silence import EARLY_LINES, silence
from gputui.runs.logs import output_state
from gputui.runs.processes import AttemptProcess, ProcessScan
from gputui.runs.repository import transaction
from gputui.store.events import Severity
from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.watched import ObservationRow, newest_lines, observations, put_observation
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.series import GpuSample

log = logging.getLogger(__name__)

MEMORY_SECONDS = 30.0  # /proc of a thousand processes costs tens of milliseconds
# A lost GPU ends an attempt that makes no progress for so long.
LOST_SECONDS = 20.0
HISTORY_SECONDS = 60.0
# A turn that is this late means that the agent was suspended, probably together with its runs.
SLEPT_SECONDS = 10.0


@dataclass(slots=True)
class HealthMonitor:
    """Checks all live attempts of one state directory, in rounds that may take several turns.

    An unexpected error must end neither the agent nor the checks of other runs.

    Attributes:
        due_at: the next round (monotonic).
        scan: the machine's processes; one scan serves the whole round.
        waiting: the attempts still to be checked in this round, the next one last.
        shared: GPUs of several attempts, whose load says nothing about one of them.
    """

    context: AgentContext
    barrier: ErrorBarrier
    due_at: float = float("-inf")
    scan: ProcessScan | None = None
    waiting: list[LiveAttempt] = field(default_factory=list)
    shared: frozenset[str] = frozenset()

    def poll(self, living: Collection[LiveAttempt]) -> None:
        """Check the live attempts that are due, until the turn is spent. Raises sqlite3.Error."""
        for attempt in living:
            if attempt.watched is not None and attempt.watched.stack_dump is not None:
                _Check(self, attempt, attempt.watched).end_if_dumped()
        now = self.context.monotonic()
        if now - self.due_at >= SLEPT_SECONDS:
            for attempt in living:
                if attempt.watched is not None:
                    attempt.watched.watch.restart_silence(now)
        if now >= self.due_at and not self.waiting:
            self.due_at = now + LOOK_SECONDS
            self.scan = None
            self.waiting = list(living)[::-1]
            holders = Counter(uuid for attempt in living for uuid in attempt.record.gpus)
            self.shared = frozenset(uuid for uuid, count in holders.items() if count > 1)
        alive = {id(attempt) for attempt in living}
        while self.waiting:
            attempt = self.waiting.pop()
            name = f"the watch of {attempt.record.run_id}"
            if id(attempt) not in alive or self.barrier.is_resting(name, is_run=False):
                continue
            with self.barrier.guard(name, is_run=False):
                self._check(attempt)
            if self.context.budget.is_spent():
                break

    def _check(self, attempt: LiveAttempt) -> None:
        """Check one attempt. Raises sqlite3.Error."""
        context = self.context
        run = get_run(context.connection, attempt.record.run_id)
        if run is None or run.state not in (RunState.STARTING, RunState.RUNNING):
            return
        if attempt.placement is not None and not attempt.placement.is_seen_running(context.now()):
            # It waits on its target, or its state is unknown: a silence is no hang.
            attempt.watched = None
            return
        if attempt.watched is None:
            # The history of a long run takes long to read.
            record = attempt.record
            read = partial(read_history, context.workspace.database, record, context.monotonic(), context.now())
            key = JobKey(Purpose.NEWEST_LINES, record.run_id, record.number)
            job = context.jobs.ask(key, read, deadline_seconds=HISTORY_SECONDS)
            if job is None:
                return
            attempt.watched = job.result()
            _Check(self, attempt, attempt.watched).remember_findings()
        _Check(self, attempt, attempt.watched).run()

    def gpus(self) -> Mapping[str, GpuSample]:
        """Current samples of the GPUs of single attempts; none of simulated GPUs, whose load is not
        the ranks'."""
        if self.context.workspace.scenario.exists():
            return {}
        samples = self.context.recorder.fast.items()
        return {uuid: sample for uuid, sample in samples if uuid not in self.shared}

    def processes(self, attempt: LiveAttempt) -> list[AttemptProcess]:
        if self.scan is None:
            self.scan = self.context.scanner.scan()
        run_dir = self.context.workspace.run_dir(attempt.record.run_id)
        return attempt.executor.kind.processes(self.scan, run_dir, attempt.record)


class _Check:
    """The check of one attempt in a round."""

    def __init__(self, monitor: HealthMonitor, attempt: LiveAttempt, watched: WatchedAttempt) -> None:
        self.monitor = monitor
        self.context = monitor.context
        self.attempt = attempt
        self.watched = watched
        self.watch = watched.watch
        self.record = watched.watch.record
        self.policy = attempt.resolved.policy

    def run(self) -> None:
        watched = self.watched
        watch = self.watch
        spec = self.attempt.resolved.spec
        if watched.ending is not None:
            return
        self._feed()
        if watched.ending is None:
            self._check_for_lost_gpu()
            self._check_for_hang()
        for observation in check_setup(self.context, watched, spec):
            self._show(observation)
        # Before the first steps, loading data and filling caches looks like a leak.
        is_settled = not spec.metrics or watch.progress.lines >= EARLY_LINES
        is_due = self.context.monotonic() - watched.memory_at >= MEMORY_SECONDS
        if watched.ending is None and is_settled and is_due:
            self._check_for_leak()

    def remember_findings(self) -> None:
        """Take over the findings of a former agent: do not report them again, and end the attempt
        if it meant to."""
        for row in observations(self.context.connection, self.record.run_id, self.record.number):
            self.watched.reported.add(row.kind)
            if row.ends:
                self.watched.ending = row.kind
        if self.watched.ending is not None:
            self._begin_end()

    def _feed(self) -> None:
        """Pass the new lines to the detectors, and act on what they see."""
        watched = self.watched
        watch = self.watch
        context = self.context
        connection = context.connection
        run_id = self.record.run_id
        lines, watched.cursor = newest_lines(connection, run_id, watched.cursor, LINES_PER_LOOK)
        before = watch.progress_at
        findings = watched.pending
        watched.pending = []
        new_findings = watch.take(lines, context.monotonic(), context.now())
        roles = metric_roles(connection, run_id)
        if roles != watch.metrics.roles:
            stored, _ = newest_lines(connection, run_id, {}, LINES_PER_LOOK)
            # Of the new lines too: these know the name of the loss.
            findings += watch.begin_metrics(roles, stored)
        for finding in (*findings, *new_findings):
            self._act_on(finding)
        if watch.progress_at > before:
            watch.activity.note_power(self.monitor.gpus())

    def _check_for_lost_gpu(self) -> None:
        """Report once that an attempt waits for a GPU that is lost, and end it. A rank that lost
        its GPU fails within seconds, unless it hangs in the driver."""
        record = self.record
        context = self.context
        kind = "gpu_unresponsive"
        is_quiet = context.monotonic() - self.watch.progress_at >= LOST_SECONDS
        if not record.gpus or not is_quiet or kind in self.watched.reported:
            return
        now = context.now()
        lost = lost_gpu(context.connection, record, now - LOST_SECONDS, now)
        if lost is None:
            return
        self.watched.reported.add(kind)
        text = f"{lost.text}; no step was made for {LOST_SECONDS:.0f} s"
        if self.policy.enabled:
            text += ": ending this attempt"
        context.note("gpu_unresponsive", text, record.run_id, record.number, severity="error")
        if self.policy.enabled:
            self.attempt.executor.ask_to_end(at_once=True)

    def _check_for_hang(self) -> None:
        watch = self.watch
        now = self.context.monotonic()
        limit = self.policy.hang_after_seconds
        quiet = silence(watch.progress, now - watch.progress_at, limit)
        if not quiet.is_worth_a_look:
            watch.activity.forget_looks()
            return
        folder = attempt_dir(self.context.workspace, self.record.run_id, self.record.number)
        watch.note_output(output_state(folder), now)
        if watch.progress_at == now:
            return
        processes = self.monitor.processes(self.attempt)
        snapshot = take_snapshot(processes, self.context.monotonic(), with_connections=True)
        verdict, is_certain = watch.assess(snapshot, self.monitor.gpus(), quiet, limit)
        if verdict is not None and is_certain:
            self._act_on(verdict)

    def _check_for_leak(self) -> None:
        self.watched.memory_at = self.context.monotonic()
        available = available_bytes()
        snapshot = take_snapshot(self.monitor.processes(self.attempt), self.context.monotonic())
        if available is None:
            return
        leak = self.watch.note_memory(MemorySample(snapshot.at, snapshot.held_bytes, available))
        if leak is None:
            return
        growth = units.bytes_text(leak.bytes_per_second * 3600)
        remaining = leak.full_in_seconds
        text = f"by {growth} an hour; the host's memory is full in {units.duration(remaining)}"
        observation = Observation("memory_leak", leak.bytes_per_second, text=text, since=self.watch.progress.step)
        saves = self.attempt.resolved.spec.checkpoints
        if leak.is_near and saves is not None and saves.resume:
            self._act_on(observation)
        else:
            # Without checkpoints it would start over, so it had better use the remaining memory.
            self._show(observation)

    def _act_on(self, observation: Observation) -> None:
        """End the attempt if its policy ends those with such an observation, else show it."""
        if self.watched.ending is not None:
            return
        if FINDINGS[observation.kind].ends_on not in self.policy.ends_on:
            self._show(observation)
            return
        self._write(observation, ends=True)
        self.watched.ending = observation.kind
        self._begin_end()

    def _show(self, observation: Observation) -> None:
        if observation.kind not in self.watched.reported:
            self.watched.reported.add(observation.kind)
            self._write(observation, ends=False)

    def _write(self, observation: Observation, *, ends: bool) -> None:
        kind = observation.kind
        rank = observation.rank
        text = observation.text
        row = ObservationRow(kind, self.context.now(), text, rank=rank, step=observation.since, ends=ends)
        if ends:
            text += "; ending this attempt"
        with transaction(self.context.connection) as connection:
            put_observation(connection, self.record.run_id, self.record.number, row)
            self._note(kind, rank, text, ends=ends)

    def _note(self, kind: str, rank: int | None, text: str, *, ends: bool) -> None:
        head = FINDINGS[kind].head
        if rank is not None:
            head += f", rank {rank}"
        severity: Severity = "error" if ends else "warning"
        self.context.note(
            "observation",
            f"{head}: {clean(text)}",
            self.record.run_id,
            self.record.number,
            key=kind,
            severity=severity,
        )

    def _begin_end(self) -> None:
        """End the attempt; one that hangs is ended once its stacks are dumped."""
        kind = self.watched.ending
        workspace = self.context.workspace
        if kind not in ("hang", "rank_left_early"):
            # A last save would contain bad numbers, and might replace the last good checkpoint.
            self.attempt.executor.ask_to_end(at_once=kind != "memory_leak")
            return
        run_id = self.record.run_id
        number = self.record.number
        dump = partial(
            dump_stacks,
            self.monitor.processes(self.attempt),
            attempt_dir(workspace, run_id, number),
            incident_folder(workspace.run_dir(run_id), number),
            self.attempt.resolved.redactor,
        )
        name = f"reading the stacks of {run_id}"
        self.watched.stack_dump = self.context.jobs.start(name, dump, deadline_seconds=DEADLINE_SECONDS)

    def end_if_dumped(self) -> None:
        """End an attempt whose stacks are dumped. What they show is added to the observation, if
        that named no rank."""
        dump = self.watched.stack_dump
        if dump is None or not dump.is_over:
            return
        self.watched.stack_dump = None
        self.attempt.executor.ask_to_end(at_once=True)
        try:
            lag = dump.result()
        except Exception:
            log.exception("%s: its stacks cannot be read", self.record.run_id)
            return
        if lag is None:
            return
        rank, text = lag
        with transaction(self.context.connection) as connection:
            update = connection.execute(
                "UPDATE observations SET rank = ?, text = ? || '; ' || text "
                "WHERE run_id = ? AND attempt = ? AND ends AND rank IS NULL",
                (rank, text, self.record.run_id, self.record.number),
            )
            if update.rowcount:
                self._note("hang", rank, text, ends=True)
