"""Supervision: starts what may start, notices what ended, adopts what a predecessor started.

The database says what is meant, the shims say what is: nothing here is believed from memory alone, so that an agent
that was killed at any line is followed by one that carries on.
"""

from __future__ import annotations

import logging
import selectors
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gputui.agent import launching
from gputui.agent.draining import Draining
from gputui.agent.effects import surroundings
from gputui.agent.ending import Ending
from gputui.agent.examining import Examination
from gputui.agent.gates import Gates
from gputui.agent.gpu_trouble import GpuTrouble
from gputui.agent.guarding import Guard
from gputui.agent.live_attempt import KILL, LiveAttempt
from gputui.agent.outbox import Outbox
from gputui.agent.recorder import Recorder
from gputui.agent.searching import CheckpointSearch
from gputui.agent.starting import Starting
from gputui.agent.waits import Waits
from gputui.agent.watching import Watching
from gputui.config import Workspace
from gputui.gpu.model import Occupant
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import notices, repository
from gputui.runs.foreign_json import read_foreign_json, time_in
from gputui.runs.identity import ProcessIdentity, environment_of, is_alive, marked_processes
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState

log = logging.getLogger(__name__)

LOOK_TOLD_SECONDS = 1.0

# More than any shim writes.
RECORD_BYTES = 1 << 16


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
    needs_schedule: bool = True
    searches: dict[int, CheckpointSearch] = field(default_factory=dict)
    guard: Guard = field(init=False)
    ending: Ending = field(init=False)
    draining: Draining = field(init=False)
    watching: Watching = field(init=False)
    gpu_trouble: GpuTrouble = field(init=False)
    starting: Starting = field(init=False)
    waits: Waits = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self.guard = Guard(self.connection, self.wall, self.clock)
        self.ending = Ending(self.connection, self.workspace, self.ingest, self.wall)
        self.draining = Draining(self.connection, self.workspace.runs, self.recorder, self.wall, self.clock)
        self.gpu_trouble = GpuTrouble(self.connection, self.wall, self.clock, self._end_at_once)
        self.starting = Starting(
            self.connection,
            self.workspace,
            self.ingest,
            self.recorder,
            self.guard,
            self.draining,
            self.wall,
            self._spawn,
        )
        gates = Gates(self.connection, self.workspace, self.recorder, self.wall, self.wake)
        self.waits = Waits(self.connection, self.workspace, gates, self.wall, self.clock)
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
        if self.waits.turn():
            self.needs_schedule = True
        if self.needs_schedule:
            self.needs_schedule = False
            self.starting.turn()

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
        return self.waits.next_due()

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
            live.ask_to_end(at_once=now_at_once)
        self.needs_schedule = True

    def repeat_stops(self) -> None:
        """After adoption: a stop whose signal may not have been sent is sent again; a shim ignores the second."""
        for run in repository.runs_in(self.connection, [RunState.STOPPING]):
            live = self.live.get(run.run_id)
            if live is not None:
                live.ask_to_end(at_once=live.record.stop_requested == KILL)

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
        live.release(self.selector)
        left = [
            process
            for process in self._marked(live.record.run_id, live.record.number)
            if live.shim is None or process.pid != live.shim.pid
        ]
        if left and not live.sweep(left, self.clock()):
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
        around = surroundings(self.workspace, self.connection, live.record, self.starting.standings() or ())
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

    def _begin_draining(self, record: AttemptRecord) -> None:
        baseline = self.starting.baseline_of(record.run_id)
        self.draining.begin(record.run_id, {uuid: baseline.get(uuid) for uuid in record.gpus})


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
