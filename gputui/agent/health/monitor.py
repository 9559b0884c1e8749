"""The health monitor of live attempts: feeds their detectors, and writes and acts on what they
observe.

While metrics lines arrive, processes are read only for their memory. A finding is reported once. If
the run's policy says so, it ends the attempt: the intent is stored first, then stacks are dumped,
then the attempt is ended.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from sqlite3 import Connection

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import Parts
from gputui.agent.health.incident_folder import incident_folder
from gputui.agent.health.stack_dump import DEADLINE_SECONDS, StackDump
from gputui.agent.health.watched import LINES_PER_LOOK, WatchedAttempt, read_history, take_snapshot
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun, attempt_dir
from gputui.core import units
from gputui.core.text import clean
from gputui.machine.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT
from gputui.recovery import evidence
from gputui.recovery.evidence import ObservedCause, Sighting
from gputui.recovery.policies import Policy
from gputui.recovery.watch.attempt import LOOK_SECONDS
from gputui.recovery.watch.numbers import MemorySample
from gputui.recovery.watch.rules import FINDINGS, Observation
from gputui.recovery.watch.silence import EARLY_LINES, silence
from gputui.runs.process_readings import available_bytes
from gputui.runs.processes import AttemptProcess, ProcessScan
from gputui.runs.repository import transaction
from gputui.store import samples, series
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import ObservationRow, newest_lines, observations, put_observation
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.series import GpuSample

log = logging.getLogger(__name__)

MEMORY_SECONDS = 30.0
# A lost GPU ends an attempt that makes no progress for so long.
LOST_SECONDS = 20.0
HISTORY_SECONDS = 60.0
# A turn that is this late means that the agent was suspended, probably together with its runs.
SLEPT_SECONDS = 10.0


@dataclass(slots=True)
class HealthMonitor:
    """Checks all live attempts of one state directory, in rounds that may take several turns.

    An unexpected error must end neither the agent nor the checks of other runs.
    """

    context: AgentContext
    parts: Parts
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
        if now - self.due >= SLEPT_SECONDS:
            for attempt in living:
                if attempt.watched is not None:
                    attempt.watched.watch.restart_silence(now)
        if now >= self.due and not self.waiting:
            self.due = now + LOOK_SECONDS
            self.scan = None
            self.waiting = list(living)[::-1]
            holders = Counter(uuid for attempt in living for uuid in attempt.record.gpus)
            self.shared = frozenset(uuid for uuid, count in holders.items() if count > 1)
        alive = {id(attempt) for attempt in living}
        while self.waiting:
            attempt = self.waiting.pop()
            name = f"the watch of {attempt.record.run_id}"
            if id(attempt) not in alive or self.parts.is_resting(name, is_run=False):
                continue
            with self.parts.around(name, is_run=False):
                self._check(attempt)
            if self.context.turn.is_spent():
                break

    def _check(self, attempt: LiveAttempt) -> None:
        """Check one attempt. Raises sqlite3.Error."""
        context, resolved = self.context, attempt.resolved
        run = get_run(context.connection, attempt.record.run_id)
        if run is None or run.state not in (RunState.STARTING, RunState.RUNNING):
            return
        if attempt.placement is not None and not attempt.placement.is_seen_running(context.now()):
            # It waits on its target, or its state is unknown: a silence is no hang.
            attempt.watched = None
            return
        if attempt.watched is None:
            attempt.watched = self._begun(attempt)
            if attempt.watched is None:
                return
            self._remember(attempt, attempt.watched)
        watched, policy = attempt.watched, resolved.policy
        if watched.ending is not None:
            return
        self._feed(attempt, watched, policy)
        if watched.ending is None:
            self._look_for_lost_gpu(attempt, watched, policy)
            self._look_for_hang(attempt, watched, policy)
        watch, reported = watched.watch, watched.reported
        for seen in watched.setup.look(context, watch, resolved.spec, reported):
            self._show(watched, seen)
        # Before the first steps, loading data and filling caches looks like a leak.
        is_settled = not resolved.spec.metrics or watch.progress.lines >= EARLY_LINES
        is_due = context.monotonic() - watched.memory_at >= MEMORY_SECONDS
        if watched.ending is None and is_settled and is_due:
            self._look_for_leak(attempt, watched, resolved)

    def _begun(self, attempt: LiveAttempt) -> WatchedAttempt | None:
        """The attempt's state from the store; None while a job reads it, which takes long for a
        long run."""
        context, record = self.context, attempt.record
        read = partial(read_history, context.workspace.database, record, context.monotonic(), context.now())
        name = f"reading the newest lines of {record.run_id}"
        job = context.jobs.ask(name, read, deadline_seconds=HISTORY_SECONDS)
        return None if job is None else job.result()

    def _remember(self, attempt: LiveAttempt, watched: WatchedAttempt) -> None:
        """Take over the findings of a former agent: do not report them again, and end the attempt
        if it meant to."""
        record = watched.watch.record
        for row in observations(self.context.connection, record.run_id, record.number):
            watched.reported.add(row.kind)
            if row.ends:
                watched.ending = row.kind
        if watched.ending is not None:
            self._begin_end(attempt, watched)

    def _feed(self, attempt: LiveAttempt, watched: WatchedAttempt, policy: Policy) -> None:
        """Pass the new lines to the detectors, and act on what they see."""
        watch, context = watched.watch, self.context
        run_id, cursor = watch.record.run_id, watched.cursor
        lines, watched.cursor = newest_lines(context.connection, run_id, cursor, LINES_PER_LOOK)
        before = watch.progress_at
        seen = [*watched.pending, *watch.take(lines, context.monotonic(), context.now())]
        watched.pending = []
        for observation in seen:
            self._act_on(attempt, watched, observation, policy)
        if watch.progress_at > before:
            watch.note_power(self._gpus())

    def _look_for_lost_gpu(self, attempt: LiveAttempt, watched: WatchedAttempt, policy: Policy) -> None:
        """Report once that an attempt waits for a GPU that is lost, and end it. A rank that lost
        its GPU fails within seconds, unless it hangs in the driver."""
        record, context, kind = watched.watch.record, self.context, "gpu_unresponsive"
        is_quiet = context.monotonic() - watched.watch.progress_at >= LOST_SECONDS
        if not record.gpus or not is_quiet or kind in watched.reported:
            return
        now = context.now()
        lost = lost_gpu(context.connection, record, now - LOST_SECONDS, now)
        if lost is None:
            return
        watched.reported.add(kind)
        ends = ": ending this attempt" if policy.enabled else ""
        text = f"{lost.text}; no step was made for {LOST_SECONDS:.0f} s{ends}"
        context.note("gpu_unresponsive", text, record.run_id, record.number, severity="error")
        if policy.enabled:
            attempt.executor.ask_to_end(at_once=True)

    def _look_for_hang(self, attempt: LiveAttempt, watched: WatchedAttempt, policy: Policy) -> None:
        watch, now, limit = watched.watch, self.context.monotonic(), policy.hang_after_seconds
        quiet = silence(watch.progress, now - watch.progress_at, limit)
        if not quiet.is_worth_a_look:
            watch.forget_looks()
            return
        processes, is_early = self._processes(attempt), not quiet.is_overdue
        snapshot = take_snapshot(processes, self.context.monotonic(), with_connections=is_early)
        verdict, is_certain = watch.assess(snapshot, self._gpus(), quiet, limit)
        if verdict is not None and is_certain:
            self._act_on(attempt, watched, verdict, policy)

    def _look_for_leak(self, attempt: LiveAttempt, watched: WatchedAttempt, resolved: ResolvedRun) -> None:
        watched.memory_at = self.context.monotonic()
        available = available_bytes()
        snapshot = take_snapshot(self._processes(attempt), self.context.monotonic())
        if available is None:
            return
        sample = MemorySample(snapshot.at, snapshot.held_bytes, available)
        leak = watched.watch.note_memory(sample)
        if leak is None:
            return
        grows, left = units.bytes_text(leak.bytes_per_second * 3600), leak.full_in_seconds
        text = f"by {grows} an hour; the host's memory is full in {units.duration(left)}"
        since = watched.watch.progress.step
        seen = Observation("memory_leak", leak.bytes_per_second, text=text, since=since)
        saves = resolved.spec.checkpoints
        if leak.is_near and saves is not None and saves.resume:
            self._act_on(attempt, watched, seen, resolved.policy)
        else:
            # Without checkpoints it would start over, so it had better use the remaining memory.
            self._show(watched, seen)

    def _gpus(self) -> Mapping[str, GpuSample]:
        """Current samples of the GPUs of single attempts; none of simulated GPUs, whose load is not
        the ranks'."""
        if self.context.workspace.scenario.exists():
            return {}
        samples = self.context.recorder.fast.items()
        return {uuid: sample for uuid, sample in samples if uuid not in self.shared}

    def _processes(self, attempt: LiveAttempt) -> list[AttemptProcess]:
        if self.scan is None:
            self.scan = self.context.scanner.scan()
        run_dir = self.context.workspace.run_dir(attempt.record.run_id)
        return attempt.executor.kind.processes(self.scan, run_dir, attempt.record)

    def _act_on(self, attempt: LiveAttempt, watched: WatchedAttempt, seen: Observation, policy: Policy) -> None:
        """End the attempt if its policy ends those with such an observation, else show it."""
        if watched.ending is not None:
            return
        if FINDINGS[seen.kind].ends_on not in policy.ends_on:
            self._show(watched, seen)
            return
        self._write(watched, seen, ends=True)
        watched.ending = seen.kind
        self._begin_end(attempt, watched)

    def _show(self, watched: WatchedAttempt, seen: Observation) -> None:
        if seen.kind not in watched.reported:
            watched.reported.add(seen.kind)
            self._write(watched, seen, ends=False)

    def _write(self, watched: WatchedAttempt, seen: Observation, *, ends: bool) -> None:
        record, now = watched.watch.record, self.context.now()
        row = ObservationRow(seen.kind, now, seen.text, seen.rank, seen.since, ends)
        text = f"{seen.text}; ending this attempt" if ends else seen.text
        with transaction(self.context.connection) as connection:
            put_observation(connection, record.run_id, record.number, row)
            self._tell(watched, seen.kind, seen.rank, text, ends=ends)

    def _tell(self, watched: WatchedAttempt, kind: str, rank: int | None, text: str, *, ends: bool) -> None:
        record, who = watched.watch.record, "" if rank is None else f", rank {rank}"
        self.context.note(
            "observation",
            f"{FINDINGS[kind].head}{who}: {clean(text)}",
            record.run_id,
            record.number,
            key=kind,
            severity="error" if ends else "warning",
        )

    def _begin_end(self, attempt: LiveAttempt, watched: WatchedAttempt) -> None:
        if watched.ending not in ("hang", "rank_left_early"):
            # A last save would contain bad numbers, and might replace the last good checkpoint.
            attempt.executor.ask_to_end(at_once=watched.ending != "memory_leak")
            return
        context, run_id, number = self.context, attempt.record.run_id, attempt.record.number
        dump = StackDump(
            self._processes(attempt),
            attempt_dir(context.workspace, run_id, number),
            incident_folder(context.workspace.run_dir(run_id), number, watched.ending),
            attempt.resolved.redactor,
        )
        name = f"reading the stacks of {run_id}"
        watched.stack_dump = context.jobs.start(name, dump.write, deadline_seconds=DEADLINE_SECONDS)

    def _end_dumped(self, living: Collection[LiveAttempt]) -> None:
        for attempt in living:
            watched = attempt.watched
            if watched is None or watched.stack_dump is None or not watched.stack_dump.is_over:
                continue
            dump, watched.stack_dump = watched.stack_dump, None
            attempt.executor.ask_to_end(at_once=True)
            try:
                found = dump.result()
            except Exception:
                log.exception("%s: its stacks were not kept", attempt.record.run_id)
                continue
            if found is None:
                continue
            # What the stacks show is added to the observation, if that named no rank.
            rank, text = found
            record = watched.watch.record
            with transaction(self.context.connection) as connection:
                named = connection.execute(
                    "UPDATE observations SET rank = ?, text = ? || '; ' || text "
                    "WHERE run_id = ? AND attempt = ? AND ends AND rank IS NULL",
                    (rank, text, record.run_id, record.number),
                )
                if named.rowcount:
                    self._tell(watched, "hang", rank, text, ends=True)


# Events shortly before an attempt's start count too.
EARLY_SECONDS = 1.0
_GONE = FIRMWARE_SILENT | {FALLEN_OFF_THE_BUS}


def hardware_evidence(
    connection: Connection, attempt: Attempt, nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """The driver's reports about an attempt's GPUs while it ran."""
    seen = sightings(connection, attempt.gpus, _since(attempt), ended_at)
    return evidence.observations(seen, attempt.gpus, nproc, ended_at=ended_at)


def lost_gpu(connection: Connection, attempt: Attempt, until: float, now: float) -> ObservedCause | None:
    """A GPU of the attempt that has been off the bus or unresponsive since before ``until``."""
    gone = []
    for report in _reports(connection, attempt.gpus, _since(attempt), now):
        is_loss = report.what == "lost" or report.code in _GONE
        if report.what == "returned" or (report.at <= until and is_loss):
            gone.append(report)
    found = evidence.observations(gone, attempt.gpus, len(attempt.gpus), ended_at=now)
    return next(iter(found), None)


def sightings(connection: Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """Driver events and risen error counters of these GPUs between two times (UTC unix seconds)."""
    seen = _reports(connection, gpus, since, until)
    for uuid in gpus:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            seen += _risen(connection, uuid, row[0], since, until)
    return seen


def _since(attempt: Attempt) -> float:
    begun = attempt.created_at if attempt.started_at is None else attempt.started_at
    return begun - EARLY_SECONDS


def _reports(connection: Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    rows = connection.execute(
        "SELECT at, uuid, event, code FROM gpu_events WHERE at BETWEEN ? AND ? "
        "AND event IN ('xid', 'lost', 'returned') AND uuid IN (SELECT value FROM json_each(?))",
        (since, until, json.dumps(list(gpus))),
    )
    return [Sighting(*row) for row in rows]


def _risen(connection: Connection, uuid: str, gpu_id: int, since: float, until: float) -> Iterator[Sighting]:
    """Times when a GPU's counter of ECC errors rose or row remapping failed."""
    counted: int | None = None
    failed: bool | None = None
    columns = ("ecc_uncorrected", "row_remap_failed")
    rows = samples.between(connection, series.SLOW, gpu_id, columns, since, until)
    for at, errors, remap_failed in rows:
        if errors is not None:
            # The first value is from before the attempt; a smaller one means that the driver
            # restarted.
            if counted is not None and errors > counted:
                yield Sighting(at, uuid, "ecc", errors - counted)
            counted = errors
        if remap_failed is not None:
            if remap_failed and failed is False:
                yield Sighting(at, uuid, "remap")
            failed = bool(remap_failed)
