"""Supervision: starts what may start, notices what ended, adopts what a predecessor started.

The database says what is meant, the shims say what is: nothing here is believed from memory alone, so that an agent
that was killed at any line is followed by one that carries on.
"""

from __future__ import annotations

import logging
import os
import selectors
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import Guard, Parts
from gputui.agent.health.gpu_faults import GpuTrouble
from gputui.agent.health.monitor import Watching
from gputui.agent.jobs import Job, JobTimeoutError
from gputui.agent.lifecycle import attempt_launch
from gputui.agent.lifecycle.active_run import KILL, LiveAttempt
from gputui.agent.lifecycle.admission import Starting, give_up
from gputui.agent.lifecycle.apply_plan import surroundings
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys
from gputui.agent.lifecycle.examination import Task, examine
from gputui.agent.lifecycle.postmortem import Ending
from gputui.agent.lifecycle.preconditions import Gates
from gputui.agent.lifecycle.release import LOOK_SECONDS, Draining
from gputui.agent.lifecycle.removal import Removal
from gputui.agent.lifecycle.resume_check import ResumeChecks
from gputui.agent.lifecycle.shim_python import PythonGoneError
from gputui.agent.lifecycle.waiting import Waits
from gputui.agent.notify.outbox import Outbox
from gputui.gpu.model import Occupant
from gputui.recovery.checkpoint_search import Choice, Search
from gputui.runs import notices, repository
from gputui.runs.attempt_processes import AttemptProcess, ProcessScanner
from gputui.runs.foreign_json import read_foreign_json, time_in
from gputui.runs.gpu_locks import GpuLocks
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.runs.logs import rank_logs
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.spec import SpecError
from gputui.runs.states import RunState
from gputui.store.database import is_locked
from gputui.store.events import add_event

log = logging.getLogger(__name__)

LOOK_TOLD_SECONDS = 1.0
# Hundreds of gigabytes of checkpoints are read in minutes; a file system that does not answer is not waited for longer.
EXAMINE_SECONDS = 1800.0
# The sampler reads once a second unless told otherwise, and needs some to begin.
READING_SECONDS = 5.0

# A command without steps counts as running once it has lived so long and written something; a silent one later.
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 60.0
ALIVE_LOOK_SECONDS = 1.0
# Of one turn, for the metrics that attempts which ended have left unread.
READ_SECONDS = 0.03

# More than any shim writes.
RECORD_BYTES = 1 << 16


@dataclass(slots=True)
class Supervisor:
    """All runs of one state directory."""

    context: AgentContext
    selector: selectors.BaseSelector
    live: dict[str, LiveAttempt] = field(default_factory=dict)
    unadopted: list[str] = field(default_factory=list)
    needs_schedule: bool = True
    has_more_to_start: bool = False
    _read_until: float = 0.0
    # By the command that waits for what is found.
    searches: dict[int, tuple[Search, Job[Choice]]] = field(default_factory=dict)
    # How often what a command does could not be written, by the command's number.
    failed_writes: dict[int, int] = field(default_factory=dict)
    removal: Removal = field(init=False)
    scanner: ProcessScanner = field(default_factory=ProcessScanner)
    guard: Guard = field(init=False)
    parts: Parts = field(init=False)
    ending: Ending = field(init=False)
    draining: Draining = field(init=False)
    watching: Watching = field(init=False)
    gpu_trouble: GpuTrouble = field(init=False)
    starting: Starting = field(init=False)
    waits: Waits = field(init=False)
    outbox: Outbox = field(init=False)
    surveys: CheckpointSurveys = field(init=False)
    resume_checks: ResumeChecks = field(init=False)

    def __post_init__(self) -> None:
        context = self.context
        self.removal = Removal(context)
        self.surveys = CheckpointSurveys(context)
        self.guard = Guard(context)
        self.parts = Parts(self.guard)
        self.ending = Ending(context)
        self.draining = Draining(context, GpuLocks.of(context.workspace, os.environ))
        self.gpu_trouble = GpuTrouble(context, self._end_at_once)
        self.resume_checks = ResumeChecks(context, self._give_up)
        self.starting = Starting(context, self.guard, self.draining, self._spawn, self.resume_checks.may_start)
        self.waits = Waits(context, Gates(context), self.guard, self.starting.is_understood)
        self.outbox = Outbox(context)
        self.watching = Watching(context, self._end_at_once, self._ask_to_end)

    # --- adoption -------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what a predecessor left: every run of which processes may exist."""
        states = [state for state in RunState if state.has_attempt]
        self.unadopted = [run.run_id for run in repository.runs_in(self.context.connection, states)]
        self._adopt_more()
        leased: dict[str, list[str]] = {}
        for uuid, run_id in repository.leases(self.context.connection).items():
            leased.setdefault(run_id, []).append(uuid)
        for run_id, uuids in leased.items():
            holder = repository.get_run(self.context.connection, run_id)
            if run_id not in self.live and (holder is None or holder.state.is_over):
                self.draining.begin(run_id, None if holder is None else holder.attempt, dict.fromkeys(uuids))

    def _adopt_more(self) -> None:
        """Take over runs that were not yet; one that cannot be is tried again later."""
        for run_id in list(self.unadopted):
            if not self.guard.is_resting(run_id):
                with self.guard.around(run_id):
                    self._adopt(run_id)
                    self.unadopted.remove(run_id)

    def _adopt(self, run_id: str) -> None:
        run = repository.get_run(self.context.connection, run_id)
        if run is None or not run.state.has_attempt:
            return
        record = repository.get_attempt(self.context.connection, run_id, run.attempt)
        if record is None:
            with transaction(self.context.connection):
                cause = "its attempt is not in the database"
                repository.move(self.context.connection, run, RunState.FAILED, cause=cause, now=self.context.now())
            return
        shim = record.shim or attempt_launch.find_shim(self.context.workspace, run_id, record.number)
        folder = attempt_launch.attempt_dir(self.context.workspace, run_id, record.number)
        begun = (folder / "started.json").exists() or (folder / "exit.json").exists()
        if shim is None and not begun:
            # Its starter died between the row and the shim; the shim itself refuses to run twice.
            self._spawn(record)
            return
        self._watch(record, shim)
        if shim is not None and record.shim is None:
            repository.set_shim(self.context.connection, run_id, record.number, shim)

    # --- one turn of the loop -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Everything that may have become due. Called often; does nothing when nothing changed."""
        self.parts.do("noticing ends", self.notice_ends)
        self.advance()

    def notice_ends(self) -> None:
        """See which attempts have begun or ended, each run alone. What the end of one run cannot write does not keep
        the others from ending. Raises the first sqlite3.OperationalError, or at once where the database is locked."""
        if self.unadopted:
            self._adopt_more()
        first: sqlite3.OperationalError | None = None
        # However many end at once, they share what one turn may take.
        self._read_until = self.context.monotonic() + READ_SECONDS
        for run_id, live in list(self.live.items()):
            if not self.guard.is_resting(run_id):
                try:
                    with self.guard.around(run_id):
                        self._check(live)
                except sqlite3.OperationalError as error:
                    if is_locked(error):
                        raise
                    first = first or error
        if first is not None:
            raise first

    def advance(self) -> None:
        """What follows from the state of all runs, part by part. Raises sqlite3.Error where nothing can be written."""
        parts = self.parts
        self.context.jobs.turn()
        running = self.running()
        parts.do("watching", lambda: self.watching.turn(running))
        parts.do("checkpoints", lambda: self.surveys.turn(running))
        parts.do("GPU trouble", lambda: self.gpu_trouble.turn(running))
        parts.do("notices", self.outbox.turn)
        is_one_drained = parts.do("draining", self.draining.turn)
        is_one_over = parts.do("waits", self.waits.turn)
        if is_one_drained or is_one_over or self.resume_checks.is_one_over() or self.needs_schedule:
            self.needs_schedule = False
            is_done = parts.do("starting", self.starting.turn)
            self.has_more_to_start = is_done is False
            # What failed is tried again, though nothing is hurried for it.
            self.needs_schedule = not is_done

    def folders(self) -> list[tuple[str, int, Path]]:
        """Run, number and folder of every attempt that is alive."""
        records = [live.record for live in self.live.values()]
        return [
            (
                record.run_id,
                record.number,
                attempt_launch.attempt_dir(self.context.workspace, record.run_id, record.number),
            )
            for record in records
        ]

    def running(self) -> list[AttemptRecord]:
        """Every attempt whose command has not ended, as far as is known."""
        return [live.record for live in self.live.values() if live.is_running]

    def next_due(self) -> float | None:
        """Monotonic time of the next thing that is only a matter of time, or None."""
        if self.has_more_to_start or any(live.is_reading_rest for live in self.live.values()):
            return self.context.monotonic()
        if any(live.sweeping_since is not None for live in self.live.values()):
            return self.context.monotonic() + LOOK_SECONDS
        pause, due = self.draining.next_look_seconds(), self.waits.next_due()
        if pause is None:
            return due
        return self.context.monotonic() + pause if due is None else min(due, self.context.monotonic() + pause)

    def is_busy(self) -> bool:
        """Whether a run needs an agent."""
        states = [state for state in RunState if not state.is_over]
        marks = ", ".join("?" * len(states))
        row = self.context.connection.execute(f"SELECT count(*) FROM runs WHERE state IN ({marks})", states).fetchone()  # noqa: S608
        owing = notices.is_owing(self.context.connection) or self.removal.is_owing()
        return bool(row[0] or self.live or self.draining.entries or self.context.jobs.is_busy or owing)

    # --- what the command handlers call -------------------------------------------------------------------------------

    def stop(
        self, run: RunRecord, *, intent: str, actor: str, now_at_once: bool, note: Callable[[], None] = lambda: None
    ) -> None:
        """Ask a run to end; what follows is noticed like any other end. ``note`` writes within the transaction."""
        now = self.context.now()
        live = self.live.get(run.run_id)
        with transaction(self.context.connection):
            if live is not None:
                noted = KILL if now_at_once else intent
                repository.request_stop(self.context.connection, run.run_id, live.record.number, noted)
                if run.state is not RunState.STOPPING:
                    repository.move(self.context.connection, run, RunState.STOPPING, cause=intent, actor=actor, now=now)
                    add_event(
                        self.context.connection,
                        "stop_requested",
                        f"{actor} asked it to stop",
                        now=now,
                        run_id=run.run_id,
                        attempt=run.attempt,
                    )
            else:
                repository.move(
                    self.context.connection, run, RunState.STOPPED, cause=f"stopped by {actor}", actor=actor, now=now
                )
                repository.release_leases(self.context.connection, run.run_id)
                add_event(self.context.connection, "stopped", f"stopped by {actor}", now=now, run_id=run.run_id)
            note()
        if live is not None:
            live.ask_to_end(at_once=now_at_once)
        self.needs_schedule = True

    def repeat_stops(self) -> None:
        """After adoption: a stop whose signal may not have been sent is sent again; a shim ignores the second."""
        for run in repository.runs_in(self.context.connection, [RunState.STOPPING]):
            live = self.live.get(run.run_id)
            if live is not None:
                live.ask_to_end(at_once=live.record.stop_requested == KILL)

    def occupants(self) -> list[Occupant]:
        """Our ranks on their GPUs, for the simulated source."""
        found: list[Occupant] = []
        holders = [live for live in self.live.values() if live.record.gpus]
        if not holders:
            return found
        scan = self.scanner.scan()
        for live in holders:
            uuids = live.record.gpus
            for process in scan.processes_of(self.context.workspace.run_dir(live.record.run_id), live.record.number):
                if process.rank is not None:
                    uuid = uuids[process.rank % len(uuids)]
                    found.append(Occupant(uuid, process.pid, live.record.run_id, process.rank))
        return found

    def _processes(self, record: AttemptRecord) -> list[AttemptProcess]:
        return self.scanner.scan().processes_of(self.context.workspace.run_dir(record.run_id), record.number)

    # --- starting -------------------------------------------------------------------------------------------------

    def _give_up(self, run: RunRecord, why: str) -> None:
        give_up(self.context, run, why)

    def _spawn(self, record: AttemptRecord, locks: Sequence[int] = ()) -> None:
        try:
            shim = attempt_launch.spawn_shim(self.context.workspace, record, self.starting.python.find(), locks)
        except (OSError, PythonGoneError) as error:
            # Noticed like a shim that was lost at once: the policy tells how often that is tried again.
            log.error("%s: attempt %d cannot be started: %s", record.run_id, record.number, error)
            shim = None
        # What runs is looked after, also where that cannot be written now.
        self._watch(replace(record, shim=shim), shim)
        if shim is not None:
            repository.set_shim(self.context.connection, record.run_id, record.number, shim)

    def _watch(self, record: AttemptRecord, shim: ProcessIdentity | None) -> None:
        live = LiveAttempt(record, shim)
        live.watch(self.selector)
        self.live[record.run_id] = live

    # --- ending ---------------------------------------------------------------------------------------------------

    def _end_at_once(self, record: AttemptRecord) -> None:
        """End an attempt that was watched, if it is still there."""
        live = self.live.get(record.run_id)
        if live is not None and live.record.number == record.number:
            live.ask_to_end(at_once=True)

    def _ask_to_end(self, record: AttemptRecord) -> None:
        """The same with the grace that its profile gives, so that it can save."""
        live = self.live.get(record.run_id)
        if live is not None and live.record.number == record.number:
            live.ask_to_end(at_once=False)

    def _check(self, live: LiveAttempt) -> None:
        if live.task is not None:
            self._finish_ending(live, live.task)
            return
        folder = attempt_launch.attempt_dir(self.context.workspace, live.record.run_id, live.record.number)
        if live.record.started_at is None:
            self._note_start(live, folder)
        if live.shim is not None and is_alive(live.shim):
            # Whatever lies there by now: the shim's own record is its last deed.
            if not live.is_seen_alive and self.context.monotonic() - live.looked_at >= ALIVE_LOOK_SECONDS:
                live.looked_at = self.context.monotonic()
                self._note_life(live, folder)
            return
        if live.is_reading_rest and not self._has_read_rest(live):
            return
        exit_record = read_record(folder / "exit.json")
        live.release(self.selector)
        left = [
            process.identity
            for process in self._processes(live.record)
            if live.shim is None or process.pid != live.shim.pid
        ]
        # The shim has tried all that can be tried on its survivors.
        given_up = (exit_record or {}).get("survivors") or ()
        if any(process.pid not in given_up for process in left) and not live.sweep(left, self.context.monotonic()):
            return
        has_failed = exit_record is None or exit_record.get("code") != 0
        if live.record.gpus and has_failed and not self._gpus_were_read(live):
            return
        if not self._has_read_rest(live):
            return
        try:
            task = self.ending.task(live.record, exit_record, [process.pid for process in left])
        except SpecError:
            self._end_of_unreadable(live)
            return
        self._begin_examination(live, task)

    def _gpus_were_read(self, live: LiveAttempt) -> bool:
        """Whether the GPUs were read after an attempt's end that nobody asked for: one that was lost with it is why it
        ended. Not waited for long, for the driver may hang."""
        if live.ended_at is None:
            fresh = repository.get_attempt(self.context.connection, live.record.run_id, live.record.number)
            if fresh is not None and fresh.stop_requested is not None:
                return True
            live.ended_at, live.ended_clock = self.context.now(), self.context.monotonic()
        return (
            self.context.recorder.fast_at > live.ended_at
            or self.context.monotonic() - live.ended_clock >= READING_SECONDS
        )

    def _has_read_rest(self, live: LiveAttempt) -> bool:
        left_seconds = max(0.0, self._read_until - self.context.monotonic())
        live.is_reading_rest = not self.ending.has_read_rest(live.record, left_seconds)
        return not live.is_reading_rest

    def _begin_examination(self, live: LiveAttempt, task: Task) -> None:
        name = f"reading what {live.record.run_id} left"
        live.task = task
        live.examination = self.context.jobs.start(name, partial(examine, task), deadline_seconds=EXAMINE_SECONDS)

    def _finish_ending(self, live: LiveAttempt, task: Task) -> None:
        examination = live.examination
        assert examination is not None
        if not examination.is_over:
            self._tell_of_looking(live, task, examination.begun_at)
            return
        try:
            findings = examination.result()
        except JobTimeoutError:
            if task.unanswered is not None:
                live.task = None
                raise
            why = f"no answer within {EXAMINE_SECONDS / 60:.0f} min"
            self._begin_examination(live, replace(task, unanswered=why))
            return
        except Exception:
            # Looked at anew when this run's turn comes again.
            live.task = None
            raise
        around = surroundings(
            self.context.workspace, self.context.connection, live.record, self.starting.standings() or ()
        )
        self.ending.attempt_ended(task, findings, around)
        del self.live[live.record.run_id]
        self._begin_draining(live.record)
        self.needs_schedule = True

    def _end_of_unreadable(self, live: LiveAttempt) -> None:
        """The processes of a run that this gputui cannot understand have ended: it fails, and gives its GPUs back."""
        run = repository.get_run(self.context.connection, live.record.run_id)
        if run is not None and not self.starting.is_understood(run):
            number, now = live.record.number, self.context.now()
            repository.end_attempt(
                self.context.connection, run.run_id, number, state="failed", ended_at=now, exit_record=None
            )
            del self.live[run.run_id]
            self._begin_draining(live.record)
            self.needs_schedule = True

    def _tell_of_looking(self, live: LiveAttempt, task: Task, begun_at: float | None) -> None:
        """Checkpoints are read whole, so that the look may take minutes in which the run still counts as running. One
        that is stopped meanwhile needs none of them."""
        if begun_at is not None and self.context.monotonic() - begun_at < LOOK_TOLD_SECONDS:
            return
        run = repository.get_run(self.context.connection, live.record.run_id)
        if run is None:
            return
        if run.state is RunState.STOPPING:
            if task.attempt.stop_requested is None and task.unanswered is None:
                self._begin_examination(live, replace(task, unanswered="it was stopped while they were read"))
        elif not live.is_told:
            live.is_told = True
            text = "has ended; its logs and checkpoints are being read"
            repository.set_waiting_for(self.context.connection, run.run_id, text)

    def _note_start(self, live: LiveAttempt, folder: Path) -> None:
        started = read_record(folder / "started.json")
        if started is not None:
            at = time_in(started.get("at")) or self.context.now()
            repository.set_attempt_started(self.context.connection, live.record.run_id, live.record.number, at)
            refreshed = repository.get_attempt(self.context.connection, live.record.run_id, live.record.number)
            if refreshed is not None and refreshed.shim is None and live.shim is not None:
                repository.set_shim(self.context.connection, live.record.run_id, live.record.number, live.shim)
            if refreshed is not None:
                live.record = replace(refreshed, shim=live.shim)
            refused = [str(name) for name in started.get("refused") or ()]
            if refused:
                add_event(
                    self.context.connection,
                    "limits_refused",
                    f"the agent may not give it {', '.join(refused)} of the shell that launched it; "
                    "gputui agent stop there lets the next one have them",
                    now=at,
                    severity="warning",
                    run_id=live.record.run_id,
                    attempt=live.record.number,
                )

    def _note_life(self, live: LiveAttempt, folder: Path) -> None:
        """A command that lives and writes is running, whether it reports steps or not."""
        if live.record.started_at is None:
            return
        age = self.context.now() - live.record.started_at
        if age >= ALIVE_SECONDS and any(has_bytes(log.path) for log in rank_logs(folder)):
            cause = "its command has written its first output"
        elif age >= SILENT_SECONDS:
            cause = f"its command has lived for {SILENT_SECONDS:.0f} s"
        else:
            return
        with transaction(self.context.connection):
            run = repository.run_in(self.context.connection, live.record.run_id, RunState.STARTING)
            if run is not None and run.attempt == live.record.number:
                repository.move(self.context.connection, run, RunState.RUNNING, cause=cause, now=self.context.now())
        live.is_seen_alive = True

    def _begin_draining(self, record: AttemptRecord) -> None:
        baseline = self.starting.baseline_of(record.run_id)
        self.draining.begin(record.run_id, record.number, {uuid: baseline.get(uuid) for uuid in record.gpus})


def has_bytes(path: Path) -> bool:
    """Whether something is in the file; not where it is gone."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def read_record(path: Path) -> dict[str, Any] | None:
    """A record that the shim wrote, or None while there is none. A damaged one counts as an empty record: something
    was written, so the shim has ended."""
    try:
        value = read_foreign_json(path, RECORD_BYTES)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}
