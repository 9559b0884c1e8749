"""Supervision: starts what may start, notices what ended, adopts what a predecessor started.

The database says what is meant, the shims say what is: nothing here is believed from memory alone, so that an agent
that was killed at any line is followed by one that carries on.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gputui.agent import launching
from gputui.agent.draining import Draining
from gputui.agent.effects import owe_notices, surroundings
from gputui.agent.ending import Ending
from gputui.agent.examining import Examination
from gputui.agent.gates import POLL_SECONDS, Gates
from gputui.agent.gpu_trouble import GpuTrouble
from gputui.agent.guarding import Guard
from gputui.agent.outbox import Outbox
from gputui.agent.recorder import Recorder
from gputui.agent.rundirs import notice_of
from gputui.agent.scheduling import GpuStanding, Start, schedule
from gputui.agent.searching import CheckpointSearch
from gputui.agent.standing import standings
from gputui.agent.watching import Watching
from gputui.config import Workspace
from gputui.gpu.model import Occupant
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import notices, repository
from gputui.runs.foreign_json import read_foreign_json, time_in
from gputui.runs.identity import ProcessIdentity, boot_id, environment_of, is_alive, marked_processes, send_signal
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState
from gputui.runs.submission import SPEC_FILE
from gputui.store import queue

log = logging.getLogger(__name__)

TERM_BEFORE_KILL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0
LOOK_TOLD_SECONDS = 1.0

# More than any shim writes.
RECORD_BYTES = 1 << 16

# The intent of a stop that gives no grace, as it is noted in the attempt's row.
KILL = "kill"


@dataclass(slots=True)
class LiveAttempt:
    """An attempt of which processes may exist. ``pidfd`` becomes readable the moment its shim ends."""

    record: AttemptRecord
    shim: ProcessIdentity | None
    pidfd: int | None = None
    is_reaped: bool = False
    is_told: bool = False
    sweeping_since: float | None = None
    examination: Examination | None = None

    @property
    def is_running(self) -> bool:
        """As far as is known, its command has not ended."""
        return self.examination is None and self.sweeping_since is None


@dataclass(slots=True)
class Supervisor:
    """All runs of one state directory.

    ``wall`` gives UTC unix seconds, ``clock`` monotonic ones; ``on_start`` and ``on_end`` are told the runs whose files
    begin and cease to change; ``wake`` makes the loop turn, from any thread.
    """

    connection: sqlite3.Connection
    workspace: Workspace
    ingest: MetricsIngest
    recorder: Recorder
    selector: selectors.BaseSelector
    wall: Callable[[], float]
    clock: Callable[[], float]
    on_start: Callable[[str], None]
    on_end: Callable[[str], None]
    wake: Callable[[], None]
    live: dict[str, LiveAttempt] = field(default_factory=dict)
    baselines: dict[str, dict[str, int | None]] = field(default_factory=dict)
    needs_schedule: bool = True
    recover_at: dict[str, float] = field(default_factory=dict)
    searches: dict[int, CheckpointSearch] = field(default_factory=dict)
    guard: Guard = field(init=False)
    ending: Ending = field(init=False)
    draining: Draining = field(init=False)
    watching: Watching = field(init=False)
    gpu_trouble: GpuTrouble = field(init=False)
    gates: Gates = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self.guard = Guard(self.connection, self.wall, self.clock)
        self.ending = Ending(self.connection, self.workspace, self.ingest, self.wall)
        self.draining = Draining(self.connection, self.workspace.runs, self.recorder, self.wall, self.clock)
        self.gpu_trouble = GpuTrouble(self.connection, self.recorder, self.wall, self.clock, self._end_at_once)
        self.gates = Gates(self.connection, self.workspace, self.recorder, self.wall, self.wake)
        self.outbox = Outbox(self.connection, self.workspace, self.wall, self.wake)
        self.watching = Watching(
            self.connection,
            self.workspace,
            self.recorder,
            self.wall,
            self.clock,
            self._end_at_once,
            self._ask_to_end,
            self.wake,
        )

    # --- adoption -------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what a predecessor left: every run of which processes may exist."""
        for run in repository.runs_in(self.connection, [state for state in RunState if state.has_attempt]):
            record = repository.get_attempt(self.connection, run.run_id, run.attempt)
            if record is None:
                with transaction(self.connection):
                    repository.move(
                        self.connection,
                        run,
                        RunState.FAILED,
                        cause="its attempt is not in the database",
                        now=self.wall(),
                    )
                continue
            shim = record.shim or launching.find_shim(self.workspace, run.run_id, record.number)
            folder = launching.attempt_dir(self.workspace, run.run_id, record.number)
            begun = (folder / "started.json").exists() or (folder / "exit.json").exists()
            if shim is None and not begun:
                # Its starter died between the row and the shim; the shim itself refuses to run twice.
                self._spawn(record)
            else:
                self._watch(record, shim)
                if shim is not None and record.shim is None:
                    repository.set_shim(self.connection, run.run_id, record.number, shim)
        for uuid, run_id in repository.leases(self.connection).items():
            holder = repository.get_run(self.connection, run_id)
            if run_id not in self.live and (holder is None or holder.state.is_over):
                self.draining.begin(run_id, {uuid: None})

    # --- one turn of the loop -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Everything that may have become due. Called often; does nothing when nothing changed."""
        for run_id, live in list(self.live.items()):
            if not self.guard.is_resting(run_id):
                with self.guard.around(run_id):
                    self._check(live)
        running = self.running()
        self.watching.turn(running)
        self.gpu_trouble.turn(running)
        self.outbox.turn()
        if self.draining.turn():
            self.needs_schedule = True
        self._wake_recovering()
        if self.needs_schedule:
            self.needs_schedule = False
            self._schedule()

    def folders(self) -> list[tuple[str, int, Path]]:
        """Run, number and folder of every attempt that is alive."""
        records = [live.record for live in self.live.values()]
        return [
            (record.run_id, record.number, launching.attempt_dir(self.workspace, record.run_id, record.number))
            for record in records
        ]

    def running(self) -> list[AttemptRecord]:
        """Every attempt whose command has not ended, as far as is known."""
        return [live.record for live in self.live.values() if live.is_running]

    def next_due(self) -> float | None:
        """Monotonic time of the next thing that is only a matter of time, or None."""
        if self.draining.entries or any(live.sweeping_since is not None for live in self.live.values()):
            return self.clock() + 0.1
        return min(self.recover_at.values(), default=None)

    def is_busy(self) -> bool:
        """Whether a run needs an agent."""
        states = [state for state in RunState if not state.is_over]
        marks = ", ".join("?" * len(states))
        row = self.connection.execute(f"SELECT count(*) FROM runs WHERE state IN ({marks})", states).fetchone()  # noqa: S608
        owing = notices.is_owing(self.connection)
        return bool(row[0] or self.live or self.draining.entries or self.searches or owing)

    # --- what the command handlers call -------------------------------------------------------------------------------

    def stop(
        self, run: RunRecord, *, intent: str, actor: str, now_at_once: bool, note: Callable[[], None] = lambda: None
    ) -> None:
        """Ask a run to end; what follows is noticed like any other end. ``note`` writes within the transaction."""
        now = self.wall()
        live = self.live.get(run.run_id)
        with transaction(self.connection):
            if live is not None:
                noted = KILL if now_at_once else intent
                repository.request_stop(self.connection, run.run_id, live.record.number, noted)
                if run.state is not RunState.STOPPING:
                    repository.move(self.connection, run, RunState.STOPPING, cause=intent, actor=actor, now=now)
                    repository.add_event(
                        self.connection, f"{actor} asked it to stop", now=now, run_id=run.run_id, attempt=run.attempt
                    )
            else:
                repository.move(
                    self.connection, run, RunState.STOPPED, cause=f"stopped by {actor}", actor=actor, now=now
                )
                repository.release_leases(self.connection, run.run_id)
                repository.add_event(self.connection, f"stopped by {actor}", now=now, run_id=run.run_id)
            note()
        if live is not None:
            self._signal_stop(live, now_at_once)
        self.needs_schedule = True

    def repeat_stops(self) -> None:
        """After adoption: a stop whose signal may not have been sent is sent again; a shim ignores the second."""
        for run in repository.runs_in(self.connection, [RunState.STOPPING]):
            live = self.live.get(run.run_id)
            if live is not None:
                self._signal_stop(live, at_once=live.record.stop_requested == KILL)

    def occupants(self) -> list[Occupant]:
        """Our ranks on their GPUs, for the simulated source."""
        found = []
        for live in self.live.values():
            uuids = live.record.gpus
            if not uuids:
                continue
            for identity in self._marked(live.record.run_id, live.record.number):
                environment = environment_of(identity.pid) or {}
                local_rank = environment.get("LOCAL_RANK", "")
                if local_rank.isdigit():
                    rank = int(local_rank)
                    found.append(Occupant(uuids[rank % len(uuids)], identity.pid, live.record.run_id, rank))
        return found

    def _marked(self, run_id: str, number: int | None = None) -> list[ProcessIdentity]:
        return marked_processes(self.workspace.run_dir(run_id), number)

    # --- starting -------------------------------------------------------------------------------------------------

    def standings(self) -> list[GpuStanding] | None:
        """How each GPU stands for the scheduler, or None before the first inventory."""
        return standings(self.connection, self.recorder, self.draining.uuids())

    def _schedule(self) -> None:
        waiting = repository.queue(self.connection)
        if not waiting:
            return
        paused = queue.pause(self.connection) is not None
        for outcome in schedule(waiting, self.standings(), paused=paused):
            if isinstance(outcome, Start):
                if not self.guard.is_resting(outcome.run.run_id):
                    with self.guard.around(outcome.run.run_id):
                        self._start(outcome)
            elif outcome.run.waiting_for != outcome.reason:
                repository.set_waiting_for(self.connection, outcome.run.run_id, outcome.reason)

    def _start(self, start: Start) -> None:
        facts = self.recorder.facts
        indices = [facts[uuid].index for uuid in start.uuids]
        disk = start.run.spec.disk_bytes
        try:
            if disk is not None and (free := free_disk_bytes(self.workspace)) < disk:
                raise launching.LaunchError(f"needs {disk / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free")
            record = launching.prepare_attempt(
                self.connection, self.ingest, self.workspace, start.run, start.uuids, indices, self.wall()
            )
        except launching.LaunchError as error:
            self._cannot_start(start.run, error)
            return
        self.baselines[start.run.run_id] = {
            uuid: sample.memory_used_bytes if (sample := self.recorder.fast.get(uuid)) else None for uuid in start.uuids
        }
        self._spawn(record)

    def _cannot_start(self, run: RunRecord, error: launching.LaunchError) -> None:
        if not (self.workspace.run_dir(run.run_id) / SPEC_FILE).exists():
            self._give_up(run, "its folder is gone; launch it again")
            return
        if isinstance(error.__cause__, ValueError):
            # What is in its files does not change by itself; a disk may.
            self._give_up(run, f"cannot start: {error}")
            return
        text = f"cannot start: {error}; trying again"
        if run.waiting_for == text:
            return
        is_new = not (run.waiting_for or "").startswith("cannot start:")
        with transaction(self.connection) as connection:
            repository.set_waiting_for(connection, run.run_id, text)
            if is_new:
                repository.add_event(connection, text, now=self.wall(), severity="warning", run_id=run.run_id)

    def _give_up(self, run: RunRecord, why: str) -> None:
        now = self.wall()
        notice = notice_of(self.workspace, run.run_id)
        kind, summary = last_incident(self.connection, run.run_id) or ("unknown", "it could not be started")
        with transaction(self.connection):
            repository.move(self.connection, run, RunState.FAILED, cause=why, now=now)
            repository.release_leases(self.connection, run.run_id)
            owe_notices(self.connection, notice, run, kind, summary, why, verdict="stop", now=now)
            repository.add_event(self.connection, why, now=now, severity="error", run_id=run.run_id)

    def _spawn(self, record: AttemptRecord) -> None:
        try:
            shim = launching.spawn_shim(self.workspace, record)
        except OSError as error:
            # Noticed like a shim that was lost at once: the policy tells how often that is tried again.
            log.error("%s: attempt %d cannot be started: %s", record.run_id, record.number, error)
            shim = None
        # What runs is looked after, also where that cannot be written now.
        self._watch(replace(record, shim=shim), shim)
        if shim is not None:
            repository.set_shim(self.connection, record.run_id, record.number, shim)

    def _watch(self, record: AttemptRecord, shim: ProcessIdentity | None) -> None:
        live = LiveAttempt(record, shim)
        self.on_start(record.run_id)
        if shim is not None and is_alive(shim):
            try:
                live.pidfd = os.pidfd_open(shim.pid)
                self.selector.register(live.pidfd, selectors.EVENT_READ, None)
            except OSError:
                live.pidfd = None
        self.live[record.run_id] = live

    # --- ending ---------------------------------------------------------------------------------------------------

    def _signal_stop(self, live: LiveAttempt, at_once: bool) -> None:
        if live.shim is not None:
            send_signal(live.shim, signal.SIGUSR2 if at_once else signal.SIGTERM)
            # One that somebody stopped would never notice.
            send_signal(live.shim, signal.SIGCONT)

    def _end_at_once(self, record: AttemptRecord) -> None:
        """End an attempt that was watched, if it is still there."""
        live = self.live.get(record.run_id)
        if live is not None and live.record.number == record.number:
            self._signal_stop(live, at_once=True)

    def _ask_to_end(self, record: AttemptRecord) -> None:
        """The same with the grace that its profile gives, so that it can save."""
        live = self.live.get(record.run_id)
        if live is not None and live.record.number == record.number:
            self._signal_stop(live, at_once=False)

    def _check(self, live: LiveAttempt) -> None:
        if live.examination is not None:
            self._finish_ending(live, live.examination)
            return
        folder = launching.attempt_dir(self.workspace, live.record.run_id, live.record.number)
        if live.record.started_at is None:
            self._note_start(live, folder)
        if live.shim is not None and is_alive(live.shim):
            # Whatever lies there by now: the shim's own record is its last deed.
            return
        exit_record = read_record(folder / "exit.json")
        self._release(live)
        left = [
            process
            for process in self._marked(live.record.run_id, live.record.number)
            if live.shim is None or process.pid != live.shim.pid
        ]
        if left and not self._sweep(live, left):
            return
        task = self.ending.task(live.record, exit_record, [process.pid for process in left])
        live.examination = Examination(task, self.wake, self.clock())

    def _finish_ending(self, live: LiveAttempt, examination: Examination) -> None:
        try:
            findings = examination.findings()
        except Exception:
            # Looked at anew when this run's turn comes again.
            live.examination = None
            raise
        if findings is None:
            self._tell_of_looking(live, examination)
            return
        around = surroundings(self.workspace, self.connection, live.record, self.standings() or ())
        self.ending.attempt_ended(examination.task, findings, around)
        del self.live[live.record.run_id]
        self.on_end(live.record.run_id)
        self._begin_draining(live.record)
        self.needs_schedule = True

    def _tell_of_looking(self, live: LiveAttempt, examination: Examination) -> None:
        """Checkpoints are read whole, so that the look may take minutes in which the run still counts as running."""
        if live.is_told or self.clock() - examination.begun_at < LOOK_TOLD_SECONDS:
            return
        live.is_told = True
        run = repository.get_run(self.connection, live.record.run_id)
        if run is not None and run.state in (RunState.STARTING, RunState.RUNNING):
            text = "has ended; its logs and checkpoints are being read"
            repository.set_waiting_for(self.connection, run.run_id, text)

    def _note_start(self, live: LiveAttempt, folder: Path) -> None:
        started = read_record(folder / "started.json")
        if started is not None:
            at = time_in(started.get("at")) or self.wall()
            repository.set_attempt_started(self.connection, live.record.run_id, live.record.number, at)
            refreshed = repository.get_attempt(self.connection, live.record.run_id, live.record.number)
            if refreshed is not None and refreshed.shim is None and live.shim is not None:
                repository.set_shim(self.connection, live.record.run_id, live.record.number, live.shim)
            if refreshed is not None:
                live.record = replace(refreshed, shim=live.shim)

    def _sweep(self, live: LiveAttempt, left: list[ProcessIdentity]) -> bool:
        """End what a dead shim left behind. True when there is no more to be done: what is left cannot be killed."""
        now = self.clock()
        if live.sweeping_since is None:
            live.sweeping_since = now
            for process in left:
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)
            return False
        if now - live.sweeping_since > UNKILLABLE_SECONDS:
            return True
        if now - live.sweeping_since > TERM_BEFORE_KILL_SECONDS:
            for process in left:
                send_signal(process, signal.SIGKILL)
        return False

    def _release(self, live: LiveAttempt) -> None:
        """Let go of the shim's descriptor, and reap it where it was our child."""
        if live.pidfd is not None:
            self.selector.unregister(live.pidfd)
            os.close(live.pidfd)
            live.pidfd = None
        if live.shim is not None and not live.is_reaped and live.shim.boot_id == boot_id():
            launching.reap(live.shim.pid)
        live.is_reaped = True

    def _begin_draining(self, record: AttemptRecord) -> None:
        baseline = self.baselines.pop(record.run_id, {})
        self.draining.begin(record.run_id, {uuid: baseline.get(uuid) for uuid in record.gpus})

    def _wake_recovering(self) -> None:
        """End the waits that are over. A wait is counted by the monotonic clock from the moment it is first seen, so
        that a wall clock that is set back does not prolong it."""
        waiting: dict[str, float | None] = dict(
            self.connection.execute(
                "SELECT run_id, not_before FROM runs WHERE state = ?", (RunState.RECOVERING,)
            ).fetchall()
        )
        self.recover_at = {run_id: due for run_id, due in self.recover_at.items() if run_id in waiting}
        for run_id, not_before in waiting.items():
            left = max(0.0, (not_before or 0.0) - self.wall())
            due = self.recover_at.setdefault(run_id, self.clock() + left)
            run = repository.get_run(self.connection, run_id)
            if run is not None and min(due, self.clock() + left) <= self.clock():
                if self._is_gated(run):
                    self.recover_at[run_id] = self.clock() + POLL_SECONDS
                    continue
                with transaction(self.connection):
                    repository.move(self.connection, run, RunState.QUEUED, cause="the wait is over", now=self.wall())
                self.needs_schedule = True

    def _is_gated(self, run: RunRecord) -> bool:
        """Whether a run whose wait is over still has to wait for something; it fails where that is in vain."""
        closed = self.gates.look(run)
        if closed is None:
            return False
        if closed.is_final:
            self._give_up(run, closed.why)
        elif run.waiting_for != closed.why:
            repository.set_waiting_for(self.connection, run.run_id, closed.why)
        return True


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


def last_incident(connection: sqlite3.Connection, run_id: str) -> tuple[str, str] | None:
    """Kind and summary of a run's newest incident, or None where it met none."""
    row = connection.execute(
        "SELECT kind, summary FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run_id,)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def free_disk_bytes(workspace: Workspace) -> int:
    status = os.statvfs(workspace.state)
    return status.f_bavail * status.f_frsize
