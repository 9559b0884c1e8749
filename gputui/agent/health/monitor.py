"""The health monitor of live attempts: hangs, NaN and diverging numbers, slow ranks, memory leaks.

While metrics lines arrive, processes are read only for their memory. A finding is reported once. If the run's policy
says so, it ends the attempt: the intent is stored first, then stacks are dumped, then the attempt is ended.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.health.attempt_state import LINES_PER_LOOK, LOOK_SECONDS, AttemptState, ProcessSnapshot, take_snapshot
from gputui.agent.health.stack_dump import DEADLINE_SECONDS, StackDump, incident_folder
from gputui.agent.health.unread_metrics import makes_group, missing_metrics, trace_of
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core import units
from gputui.core.redaction import BY_LOOK
from gputui.core.text import clean
from gputui.recovery.history import resumptions
from gputui.recovery.policies import Policy
from gputui.recovery.watch.leak import MemorySample
from gputui.recovery.watch.numbers import Anomaly
from gputui.recovery.watch.progress import EARLY_LINES, silence
from gputui.runs.process_readings import available_bytes, is_connected
from gputui.runs.processes import AttemptProcess, ProcessScan
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.database import open_reader
from gputui.store.events import add_event
from gputui.store.metrics.step_times import StepTimes
from gputui.store.metrics.watched import newest_lines, observations
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.series import GpuSample

log = logging.getLogger(__name__)

MEMORY_SECONDS = 30.0
# Interval of the checks for a process group, from the first step until one is found.
GROUP_SECONDS = 15.0
UNGROUPED_CHECKS = 3
METRICS_SEARCH_SECONDS = 6.0
# So many lines of an attempt show how far apart they are.
START_LINES = 3
HISTORY_SECONDS = 60.0
# A turn that is this late means that the agent was suspended, probably together with its runs.
SLEPT_SECONDS = 10.0
# How long a run is skipped after an unexpected error.
TROUBLE_SECONDS = 60.0

# The beginning of each kind's message.
_HEADS = {
    "hang": "no progress",
    "rank_left_early": "no progress",
    "slow": "slow",
    "paused": "paused",
    "nan_loss": "the loss is not a number",
    "loss_spike": "the loss jumped",
    "gradient_spike": "gradients grew",
    "straggler": "slow rank",
    "memory_leak": "host memory grows",
    "no_metrics": "no metrics",
    "no_group": "ranks train alone",
    "not_resumed": "another checkpoint was loaded",
    "no_first_rank": "metrics are not watched",
}


@dataclass(slots=True)
class HealthMonitor:
    """Checks all live attempts of one state directory, in rounds that may take several turns."""

    context: AgentContext
    due: float = float("-inf")
    # One scan of the machine's processes serves the whole round.
    scan: ProcessScan | None = None
    # Attempts still to be checked in this round, the next one last.
    waiting: list[LiveAttempt] = field(default_factory=list)
    # GPUs of several attempts: their load says nothing about one of them.
    shared: frozenset[str] = frozenset()

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Check the live attempts that are due, until the turn is spent. Raises sqlite3.Error."""
        self._end_dumped(living)
        now = self.context.monotonic()
        if now >= self.due:
            if now - self.due >= SLEPT_SECONDS:
                for attempt in living:
                    if attempt.watched is not None:
                        attempt.watched.restart_silence(now)
            if not self.waiting:
                self.due = now + LOOK_SECONDS
                self.scan = None
                self.waiting = list(living)[::-1]
                attempts_by_gpu = Counter(uuid for attempt in living for uuid in attempt.record.gpus)
                self.shared = frozenset(uuid for uuid, count in attempts_by_gpu.items() if count > 1)
        queued = {id(attempt) for attempt in self.waiting}
        for attempt in living:
            # Its history has been read: check it in this round.
            if attempt.history is not None and attempt.history.is_over and id(attempt) not in queued:
                self.waiting.append(attempt)
        alive = {id(attempt) for attempt in living}
        while self.waiting:
            attempt = self.waiting.pop()
            if id(attempt) in alive and now >= attempt.unwatched_until:
                self._check_guarded(attempt)
                if self.context.turn.is_spent():
                    break

    def _check_guarded(self, attempt: LiveAttempt) -> None:
        """Check one attempt; an unexpected error must end neither the agent nor the checks of other runs."""
        try:
            self._check(attempt)
        except sqlite3.Error:
            raise
        except Exception:
            log.exception("%s cannot be watched", attempt.record.run_id)
            attempt.unwatched_until = self.context.monotonic() + TROUBLE_SECONDS

    def _check(self, attempt: LiveAttempt) -> None:
        """Check one attempt. Raises sqlite3.Error."""
        record = attempt.record
        run = get_run(self.context.connection, record.run_id)
        resolved = attempt.resolved
        if run is None or resolved is None or run.state not in (RunState.STARTING, RunState.RUNNING):
            return
        if attempt.placement is not None and not attempt.placement.is_seen_running(self.context.now()):
            # It waits on its target, or its state is unknown: a silence is no hang.
            attempt.watched = None
            return
        state = attempt.watched
        if state is None:
            state = self._begun(attempt)
            if state is None:
                return
            attempt.watched = state
            self._remember(attempt, state)
        if state.ending is not None:
            return
        policy = resolved.policy
        lines, state.cursor = newest_lines(self.context.connection, record.run_id, state.cursor, LINES_PER_LOOK)
        before = state.progress_at
        findings, state.pending = [*state.pending, *state.take(lines, self.context.monotonic(), self.context.now())], []
        for finding in findings:
            self._act_on(attempt, state, finding, policy)
        if state.progress_at > before:
            state.note_power(self._gpus())
        if state.ending is None:
            self._look_for_hang(attempt, state, policy)
        self._look_for_metrics(state, resolved.spec)
        self._look_for_group(attempt, state, resolved.spec)
        self._look_at_start(state)
        if (rank := state.lone_rank) is not None and "no_first_rank" not in state.reported:
            text = (
                f"all of its metrics lines have rank {rank}, and gputui watches and draws those of rank 0 or without a "
                "rank: let rank 0 write them; if it is no process's rank, such as LoRA's, give it another name"
            )
            self._report(state, "no_first_rank", None, None, text)
        # Before the first steps, loading data and filling caches looks like a leak.
        settled = not resolved.spec.metrics or state.course.lines >= EARLY_LINES
        if state.ending is None and settled and self.context.monotonic() - state.memory_at >= MEMORY_SECONDS:
            self._look_for_leak(attempt, state, resolved)

    def _begun(self, attempt: LiveAttempt) -> AttemptState | None:
        """The attempt's state from the store; None while a job reads it, which takes long for a long run."""
        if attempt.history is None:
            context, record = self.context, attempt.record
            read = partial(read_history, context.workspace.database, record, context.monotonic(), context.now())
            name = f"reading the newest lines of {record.run_id}"
            attempt.history = context.jobs.start(name, read, deadline_seconds=HISTORY_SECONDS)
        if not attempt.history.is_over:
            return None
        history, attempt.history = attempt.history, None
        return history.result()

    def _remember(self, attempt: LiveAttempt, state: AttemptState) -> None:
        """Take over the findings of a former agent: do not report them again, and end the attempt if it meant to."""
        for row in observations(self.context.connection, state.record.run_id, state.record.number):
            state.reported.add(row.kind)
            if row.ends:
                state.ending = row.kind
        if state.ending is not None:
            self._begin_end(attempt, state)

    # --- checks ---------------------------------------------------------------------------------------------------

    def _look_for_hang(self, attempt: LiveAttempt, state: AttemptState, policy: Policy) -> None:
        quiet = silence(state.course, self.context.monotonic() - state.progress_at, policy.hang_after_seconds)
        if not quiet.is_worth_a_look:
            state.last, state.stuck_since = None, None
            return
        snapshot = take_snapshot(
            self._processes(attempt), self.context.monotonic(), with_connections=not quiet.is_overdue
        )
        verdict, is_certain = state.assess(snapshot, self._gpus(), quiet, policy.hang_after_seconds)
        if verdict is not None and not verdict.is_stuck:
            self._report(state, verdict.kind, verdict.rank, state.course.step, verdict.text)
        elif verdict is not None and is_certain:
            self._act_on(attempt, state, Anomaly(verdict.kind, verdict.text, state.course.step, verdict.rank), policy)

    def _look_for_metrics(self, state: AttemptState, spec: RunSpec) -> None:
        """Report once why a run that trains has no metrics line; it would look like one that is starting."""
        if state.had_lines or not spec.metrics or "no_metrics" in state.reported:
            return
        if state.metrics_search is not None:
            if state.metrics_search.is_over:
                search, state.metrics_search = state.metrics_search, None
                try:
                    text = search.result()
                except OSError as error:
                    log.warning("%s", error)
                    text = None
                if text is not None:
                    self._report(state, "no_metrics", None, None, text)
        elif self.context.monotonic() >= state.metrics_searched_at + METRICS_SEARCH_SECONDS:
            state.metrics_searched_at = self.context.monotonic()
            record = state.record
            trace = trace_of(
                spec,
                self.context.workspace.run_dir(record.run_id),
                record.number,
                record.started_at or record.created_at,
            )
            name = f"looking for what {record.run_id} prints and saves"
            state.metrics_search = self.context.jobs.start(name, partial(missing_metrics, trace), deadline_seconds=60.0)

    def _look_for_group(self, attempt: LiveAttempt, state: AttemptState, spec: RunSpec) -> None:
        """Report once that the ranks have made no process group although their script's text makes one. A member of a
        group has a connection to its store or to another rank; a rank with any connection counts as a member."""
        now = self.context.monotonic()
        if (
            state.is_grouped
            or not state.course.lines
            or "no_group" in state.reported
            or now < state.group_at + GROUP_SECONDS
        ):
            return
        state.group_at = now
        ranks = [process for process in self._processes(attempt) if process.rank is not None]
        size = len({process.rank for process in ranks})
        if size < 2:
            return
        if any(is_connected(process.identity.pid) for process in ranks):
            state.is_grouped = True
            return
        state.ungrouped_checks += 1
        if state.ungrouped_checks == UNGROUPED_CHECKS:
            name = f"reading the script of {state.record.run_id}"
            state.group_search = self.context.jobs.start(name, partial(makes_group, spec), deadline_seconds=60.0)
        elif state.group_search is not None and state.group_search.is_over:
            # The ranks of other scripts may be meant to work apart.
            state.is_grouped = True
            with suppress(OSError):
                state.is_grouped = not state.group_search.result()
            if not state.is_grouped:
                text = f"its {size} ranks have not made the process group of their script: each trains its own model"
                self._report(state, "no_group", None, state.course.step, text)

    def _look_at_start(self, state: AttemptState) -> None:
        """Report once that the script loaded a later checkpoint than it was given: one that is passed over, perhaps
        because it was written after a NaN."""
        record = state.record
        if state.is_start_known or record.resumed_from is None or state.course.lines < START_LINES:
            return
        state.is_start_known = True
        connection = self.context.connection
        attempts = read_attempts(connection, record.run_id)
        ledger = checkpoints.of_run(connection, record.run_id)
        if resumptions(attempts, StepTimes(connection, record.run_id), ledger).get(record.number) != "later":
            return
        first = next(row.first_step for row in attempts if row.number == record.number)
        text = (
            f"steps begin at {first}, after {Path(record.resumed_from).name} (step {record.resumed_step}), which was "
            "given: the script found a later one, which gputui had passed over; pass it {checkpoint} in the profile's "
            "resume, or let it read $GPUTUI_CHECKPOINT"
        )
        self._report(state, "not_resumed", None, first, text)

    def _look_for_leak(self, attempt: LiveAttempt, state: AttemptState, resolved: ResolvedRun) -> None:
        state.memory_at = self.context.monotonic()
        available = available_bytes()
        snapshot = take_snapshot(self._processes(attempt), self.context.monotonic())
        if available is None:
            return
        leak = state.note_memory(MemorySample(snapshot.at, held_bytes(snapshot), available))
        if leak is None:
            return
        grows = units.bytes_text(leak.bytes_per_second * 3600)
        text = f"by {grows} an hour; the host's memory is full in {units.duration(leak.full_in_seconds)}"
        checkpoints = resolved.spec.checkpoints
        if leak.is_near and checkpoints is not None and checkpoints.resume:
            self._act_on(attempt, state, Anomaly("memory_leak", text, state.course.step), resolved.policy)
        else:
            # Without checkpoints it would start over, so it had better use the remaining memory.
            self._report(state, "memory_leak", None, state.course.step, text)

    def _gpus(self) -> Mapping[str, GpuSample]:
        """Current samples of the GPUs of single attempts; none of simulated GPUs, whose load is not the ranks'."""
        if self.context.workspace.scenario.exists():
            return {}
        return {uuid: sample for uuid, sample in self.context.recorder.fast.items() if uuid not in self.shared}

    def _processes(self, attempt: LiveAttempt) -> list[AttemptProcess]:
        if self.scan is None:
            self.scan = self.context.scanner.scan()
        run_dir = self.context.workspace.run_dir(attempt.record.run_id)
        return attempt.executor.kind.processes(self.scan, run_dir, attempt.record)

    # --- findings -------------------------------------------------------------------------------------------------

    def _act_on(self, attempt: LiveAttempt, state: AttemptState, finding: Anomaly, policy: Policy) -> None:
        # Policies have one name for both kinds of hang.
        subject = "hang" if finding.kind == "rank_left_early" else finding.kind
        if state.ending is not None:
            return
        if subject not in policy.ends_on:
            self._report(state, finding.kind, finding.rank, finding.step, finding.text)
            return
        self._write(state, finding.kind, finding.rank, finding.step, finding.text, ends=True)
        state.ending = finding.kind
        self._begin_end(attempt, state)

    def _report(self, state: AttemptState, kind: str, rank: int | None, step: int | None, text: str) -> None:
        if kind not in state.reported:
            state.reported.add(kind)
            self._write(state, kind, rank, step, text, ends=False)

    def _write(
        self, state: AttemptState, kind: str, rank: int | None, step: int | None, text: str, *, ends: bool
    ) -> None:
        now, record = self.context.now(), state.record
        with transaction(self.context.connection) as connection:
            connection.execute(
                "INSERT OR IGNORE INTO observations (run_id, attempt, at, kind, rank, step, text, ends) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.run_id, record.number, now, kind, rank, step, text, ends),
            )
            self._add_event(state, kind, rank, f"{text}; ending this attempt" if ends else text, ends=ends)

    def _add_event(self, state: AttemptState, kind: str, rank: int | None, text: str, *, ends: bool) -> None:
        who = "" if rank is None else f", rank {rank}"
        add_event(
            self.context.connection,
            "observation",
            f"{_HEADS[kind]}{who}: {clean(text)}",
            now=self.context.now(),
            key=kind,
            severity="error" if ends else "warning",
            run_id=state.record.run_id,
            attempt=state.record.number,
        )

    def _begin_end(self, attempt: LiveAttempt, state: AttemptState) -> None:
        record = state.record
        if state.ending in ("hang", "rank_left_early"):
            workspace = self.context.workspace
            redactor = BY_LOOK if attempt.resolved is None else attempt.resolved.redactor
            dump = StackDump(
                self._processes(attempt),
                attempt_launch.attempt_dir(workspace, record.run_id, record.number),
                incident_folder(workspace.run_dir(record.run_id), record.number, state.ending),
                redactor,
            )
            name = f"reading the stacks of {record.run_id}"
            state.stack_dump = self.context.jobs.start(name, dump.write, deadline_seconds=DEADLINE_SECONDS)
        elif state.ending == "memory_leak":
            attempt.executor.ask_to_end(at_once=False)
        else:
            # A last save would contain the bad numbers, and might replace the last good checkpoint.
            attempt.executor.ask_to_end(at_once=True)

    def _end_dumped(self, living: Collection[LiveAttempt]) -> None:
        for attempt in living:
            state = attempt.watched
            if state is not None and state.stack_dump is not None and state.stack_dump.is_over:
                dump, state.stack_dump = state.stack_dump, None
                attempt.executor.ask_to_end(at_once=True)
                try:
                    where = dump.result()
                except Exception:
                    log.exception("%s: its stacks were not kept", attempt.record.run_id)
                    continue
                if where is not None:
                    self._add_places(state, *where)

    def _add_places(self, state: AttemptState, rank: int | None, text: str) -> None:
        """Add what the stacks of a hang show to the observation, if that named no rank."""
        record = state.record
        with transaction(self.context.connection) as connection:
            named = connection.execute(
                "UPDATE observations SET rank = ?, text = ? || '; ' || text "
                "WHERE run_id = ? AND attempt = ? AND ends AND rank IS NULL",
                (rank, text, record.run_id, record.number),
            )
            if named.rowcount:
                self._add_event(state, "hang", rank, text, ends=True)


def read_history(database: Path, record: Attempt, clock: float, wall: float) -> AttemptState:
    """`AttemptState.begin` with a separate connection. Raises sqlite3.Error."""
    with closing(open_reader(database)) as connection:
        return AttemptState.begin(connection, record, clock, wall)


def held_bytes(snapshot: ProcessSnapshot) -> int:
    """Private memory of all processes of a snapshot."""
    groups = [*snapshot.ranks.values(), snapshot.others]
    return sum(process.private_bytes or 0 for group in groups for process in group)
