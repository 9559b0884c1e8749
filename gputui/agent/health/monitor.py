"""Monitor living attempts: hangs, numbers that go wrong, slow ranks, memory that grows.

Nothing is looked for among the processes while lines arrive, but for their memory now and then; findings are reported
once and, where the run's policy says so, ends the attempt: first the intent as a row, then what the processes can tell,
then the end.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.health.attempt_state import LINES_PER_LOOK, LOOK_SECONDS, AttemptState, ProcessSnapshot, look_at
from gputui.agent.health.stack_dump import DEADLINE_SECONDS, StackDump, incident_folder
from gputui.agent.health.unread_metrics import missing_metrics, trace_of
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.charts import units
from gputui.charts.safe_text import clean
from gputui.gpu.model import GpuSample
from gputui.recovery.policies import Policy
from gputui.recovery.watch.leak import MemorySample
from gputui.recovery.watch.numbers import Anomaly
from gputui.recovery.watch.progress import EARLY_LINES, silence
from gputui.redaction import BY_LOOK
from gputui.runs.attempt_processes import AttemptProcess, ProcessScan
from gputui.runs.process_readings import available_bytes, is_connected
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.store.attempts import Attempt
from gputui.store.database import open_reader
from gputui.store.events import add_event
from gputui.store.metrics.watched import newest_lines, observations
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

MEMORY_SECONDS = 30.0
# Ranks are looked at for a process group so often, from their first step on, until they were seen with one.
GROUP_SECONDS = 15.0
LONE_LOOKS = 3
METRICS_SEARCH_SECONDS = 6.0
HISTORY_SECONDS = 60.0
# An agent that comes so late was suspended, most likely together with its runs.
SLEPT_SECONDS = 10.0
# A run that raised something unforeseen is left alone so long.
TROUBLE_SECONDS = 60.0

# The message of each kind that is only reported.
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
}


def shared_gpus(living: Iterable[LiveAttempt]) -> frozenset[str]:
    """The GPUs that several attempts have."""
    held = Counter(uuid for attempt in living for uuid in attempt.record.gpus)
    return frozenset(uuid for uuid, count in held.items() if count > 1)


@dataclass(slots=True)
class HealthMonitor:
    """All living attempts of one state directory."""

    context: AgentContext
    due: float = float("-inf")
    # Of this round: all attempts are looked for in one look at the machine.
    scan: ProcessScan | None = None
    # What is still to be looked at in this round, the next one last.
    waiting: list[LiveAttempt] = field(default_factory=list)
    # What such a GPU does tells nothing of one of the attempts on it.
    shared: frozenset[str] = frozenset()

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Look at all attempts that are alive, when it is time: in a round of several turns, where they are many.
        Raises sqlite3.Error."""
        self._end_dumped(living)
        now = self.context.monotonic()
        if now >= self.due:
            if now - self.due >= SLEPT_SECONDS:
                for attempt in living:
                    if attempt.watched is not None:
                        attempt.watched.begin_anew(now)
            if not self.waiting:
                self.due = now + LOOK_SECONDS
                self.scan = None
                self.waiting = list(living)[::-1]
                self.shared = shared_gpus(living)
        known = {id(attempt) for attempt in self.waiting}
        for attempt in living:
            # What the store knows of it has been read: it is looked at in this round yet.
            if attempt.history is not None and attempt.history.is_over and id(attempt) not in known:
                self.waiting.append(attempt)
        alive = {id(attempt) for attempt in living}
        while self.waiting:
            attempt = self.waiting.pop()
            if id(attempt) in alive and now >= attempt.unwatched_until:
                self._look_guarded(attempt)
                if self.context.turn.is_spent():
                    break

    def _look_guarded(self, attempt: LiveAttempt) -> None:
        """What is unexpected in watching one run must not end the agent, nor the watching of the others."""
        try:
            self._look(attempt)
        except sqlite3.Error:
            raise
        except Exception:
            log.exception("%s cannot be watched", attempt.record.run_id)
            attempt.unwatched_until = self.context.monotonic() + TROUBLE_SECONDS

    def _look(self, attempt: LiveAttempt) -> None:
        record = attempt.record
        run = get_run(self.context.connection, record.run_id)
        resolved = attempt.resolved
        if run is None or resolved is None or run.state not in (RunState.STARTING, RunState.RUNNING):
            return
        if attempt.placement is not None and not attempt.placement.is_seen_running(self.context.now()):
            # It waits there, or its state is unknown: no silence then is a hang.
            attempt.watched = None
            return
        one = attempt.watched
        if one is None:
            one = self._begun(attempt)
            if one is None:
                return
            attempt.watched = one
            self._remember(attempt, one)
        if one.ending is not None:
            return
        policy = resolved.policy
        lines, one.cursor = newest_lines(self.context.connection, record.run_id, one.cursor, LINES_PER_LOOK)
        before = one.progress_at
        found, one.pending = [*one.pending, *one.take(lines, self.context.monotonic(), self.context.now())], []
        for finding in found:
            self._found(attempt, one, finding, policy)
        if one.progress_at > before:
            one.note_power(self._gpus())
        if one.ending is None:
            self._look_for_hang(attempt, one, policy)
        self._look_for_metrics(one, resolved.spec)
        self._look_for_group(attempt, one)
        # Until steps are made, data may be read into memory and caches be filled.
        settled = not resolved.spec.metrics or one.course.lines >= EARLY_LINES
        if one.ending is None and settled and self.context.monotonic() - one.memory_at >= MEMORY_SECONDS:
            self._look_for_leak(attempt, one, resolved)

    def _begun(self, attempt: LiveAttempt) -> AttemptState | None:
        """What the store knows of an attempt, or None while that is being read: of a long run it is much."""
        if attempt.history is None:
            context, record = self.context, attempt.record
            read = partial(read_history, context.workspace.database, record, context.monotonic(), context.now())
            name = f"reading the newest lines of {record.run_id}"
            attempt.history = context.jobs.start(name, read, deadline_seconds=HISTORY_SECONDS)
        if not attempt.history.is_over:
            return None
        history, attempt.history = attempt.history, None
        return history.result()

    def _remember(self, attempt: LiveAttempt, one: AttemptState) -> None:
        """Repeat no report of a former agent, and end the attempts that it set out to end."""
        for row in observations(self.context.connection, one.record.run_id, one.record.number):
            one.reported.add(row.kind)
            if row.ends:
                one.ending = row.kind
        if one.ending is not None:
            self._begin_end(attempt, one)

    # --- what is looked for ---------------------------------------------------------------------------------------

    def _look_for_hang(self, attempt: LiveAttempt, one: AttemptState, policy: Policy) -> None:
        quiet = silence(one.course, self.context.monotonic() - one.progress_at, policy.hang_after_seconds)
        if not quiet.is_worth_a_look:
            one.last, one.stuck_since = None, None
            return
        look = look_at(self._processes(attempt), self.context.monotonic(), with_connections=not quiet.is_overdue)
        verdict, is_certain = one.judged(look, self._gpus(), quiet, policy.hang_after_seconds)
        if verdict is not None and not verdict.is_stuck:
            self._tell(one, verdict.kind, verdict.rank, one.course.step, verdict.text)
        elif verdict is not None and is_certain:
            self._found(attempt, one, Anomaly(verdict.kind, verdict.text, one.course.step, verdict.rank), policy)

    def _look_for_metrics(self, one: AttemptState, spec: RunSpec) -> None:
        """A run that trains and has no metrics line looks like one that starts: an event says why, once."""
        if one.had_lines or not spec.metrics or "no_metrics" in one.reported:
            return
        if one.metrics_search is not None:
            if one.metrics_search.is_over:
                search, one.metrics_search = one.metrics_search, None
                try:
                    text = search.result()
                except OSError as error:
                    log.warning("%s", error)
                    text = None
                if text is not None:
                    self._tell(one, "no_metrics", None, None, text)
        elif self.context.monotonic() >= one.metrics_searched_at + METRICS_SEARCH_SECONDS:
            one.metrics_searched_at = self.context.monotonic()
            record = one.record
            trace = trace_of(
                spec,
                self.context.workspace.run_dir(record.run_id),
                record.number,
                record.started_at or record.created_at,
            )
            name = f"looking for what {record.run_id} prints and saves"
            one.metrics_search = self.context.jobs.start(name, partial(missing_metrics, trace), deadline_seconds=60.0)

    def _look_for_group(self, attempt: LiveAttempt, one: AttemptState) -> None:
        """Ranks that were to train together and made no process group look healthy: an event says so, once. A member of
        a group keeps a connection to its store or to another rank. A rank with any other connection is not judged."""
        now = self.context.monotonic()
        if one.is_grouped or not one.course.lines or "no_group" in one.reported or now < one.group_at + GROUP_SECONDS:
            return
        one.group_at = now
        ranks = [process for process in self._processes(attempt) if process.rank is not None]
        size = len({process.rank for process in ranks})
        if size < 2:
            return
        if any(is_connected(process.identity.pid) for process in ranks):
            one.is_grouped = True
            return
        one.lone_looks += 1
        if one.lone_looks >= LONE_LOOKS:
            text = (
                f"its {size} ranks have made no process group: each trains a model of its own; the script must call "
                "init_process_group"
            )
            self._tell(one, "no_group", None, one.course.step, text)

    def _look_for_leak(self, attempt: LiveAttempt, one: AttemptState, resolved: ResolvedRun) -> None:
        one.memory_at = self.context.monotonic()
        available = available_bytes()
        look = look_at(self._processes(attempt), self.context.monotonic())
        if available is None:
            return
        leak = one.note_memory(MemorySample(look.at, held_bytes(look), available))
        if leak is None:
            return
        grows = units.bytes_text(leak.bytes_per_second * 3600)
        text = f"by {grows} an hour; the host's memory is full in {units.duration(leak.full_in_seconds)}"
        checkpoints = resolved.spec.checkpoints
        if leak.is_near and checkpoints is not None and checkpoints.resume:
            self._found(attempt, one, Anomaly("memory_leak", text, one.course.step), resolved.policy)
        else:
            # One that would start over had better use the remaining memory.
            self._tell(one, "memory_leak", None, one.course.step, text)

    def _gpus(self) -> Mapping[str, GpuSample]:
        """The GPUs that one attempt alone has, as they are now. Simulated ones follow their scenario, not the ranks."""
        if self.context.workspace.scenario.exists():
            return {}
        return {uuid: sample for uuid, sample in self.context.recorder.fast.items() if uuid not in self.shared}

    def _processes(self, attempt: LiveAttempt) -> list[AttemptProcess]:
        if self.scan is None:
            self.scan = self.context.scanner.scan()
        run_dir = self.context.workspace.run_dir(attempt.record.run_id)
        return attempt.executor.kind.processes(self.scan, run_dir, attempt.record)

    # --- what follows ---------------------------------------------------------------------------------------------

    def _found(self, attempt: LiveAttempt, one: AttemptState, finding: Anomaly, policy: Policy) -> None:
        # The stuck kinds are one to a person who writes a policy.
        subject = "hang" if finding.kind == "rank_left_early" else finding.kind
        if one.ending is not None:
            return
        if subject not in policy.ends_on:
            self._tell(one, finding.kind, finding.rank, finding.step, finding.text)
            return
        self._write(one, finding.kind, finding.rank, finding.step, finding.text, ends=True)
        one.ending = finding.kind
        self._begin_end(attempt, one)

    def _tell(self, one: AttemptState, kind: str, rank: int | None, step: int | None, text: str) -> None:
        if kind not in one.reported:
            one.reported.add(kind)
            self._write(one, kind, rank, step, text, ends=False)

    def _write(
        self, one: AttemptState, kind: str, rank: int | None, step: int | None, text: str, *, ends: bool
    ) -> None:
        now, record = self.context.now(), one.record
        who = "" if rank is None else f", rank {rank}"
        head = f"{_HEADS[kind]}{who}: {clean(text)}"
        with transaction(self.context.connection) as connection:
            connection.execute(
                "INSERT OR IGNORE INTO observations (run_id, attempt, at, kind, rank, step, text, ends) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.run_id, record.number, now, kind, rank, step, text, ends),
            )
            add_event(
                connection,
                "observation",
                f"{head}; ending this attempt" if ends else head,
                now=now,
                key=kind,
                severity="error" if ends else "warning",
                run_id=record.run_id,
                attempt=record.number,
            )

    def _begin_end(self, attempt: LiveAttempt, one: AttemptState) -> None:
        record = one.record
        if one.ending in ("hang", "rank_left_early"):
            workspace = self.context.workspace
            redactor = BY_LOOK if attempt.resolved is None else attempt.resolved.redactor
            dump = StackDump(
                self._processes(attempt),
                attempt_launch.attempt_dir(workspace, record.run_id, record.number),
                incident_folder(workspace.run_dir(record.run_id), record.number, one.ending),
                redactor,
            )
            name = f"reading the stacks of {record.run_id}"
            one.stack_dump = self.context.jobs.start(name, dump.write, deadline_seconds=DEADLINE_SECONDS)
        elif one.ending == "memory_leak":
            attempt.executor.ask_to_end(at_once=False)
        else:
            # What it would still save is of the trouble, and might take the place of the last good checkpoint.
            attempt.executor.ask_to_end(at_once=True)

    def _end_dumped(self, living: Collection[LiveAttempt]) -> None:
        for attempt in living:
            one = attempt.watched
            if one is not None and one.stack_dump is not None and one.stack_dump.is_over:
                dump, one.stack_dump = one.stack_dump, None
                attempt.executor.ask_to_end(at_once=True)
                try:
                    dump.result()
                except Exception:
                    log.exception("%s: its stacks were not kept", attempt.record.run_id)


def read_history(database: Path, record: Attempt, clock: float, wall: float) -> AttemptState:
    """`AttemptState.begin` with a separate connection. Raises sqlite3.Error."""
    with closing(open_reader(database)) as connection:
        return AttemptState.begin(connection, record, clock, wall)


def held_bytes(look: ProcessSnapshot) -> int:
    """Private memory of all processes of a look."""
    groups = [*look.ranks.values(), look.others]
    return sum(process.private_bytes or 0 for group in groups for process in group)
