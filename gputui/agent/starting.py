"""Starting: which queued runs may start on which GPUs, and what is said of one that cannot."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.agent import launching
from gputui.agent.draining import Draining
from gputui.agent.effects import owe_notices
from gputui.agent.guarding import Guard
from gputui.agent.recorder import Recorder
from gputui.agent.rundirs import notice_of
from gputui.agent.scheduling import GpuStanding, Start, schedule
from gputui.agent.standing import standings
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import repository
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState
from gputui.runs.submission import SPEC_FILE
from gputui.store import queue


@dataclass(slots=True)
class Starting:
    """The way from the queue to a prepared attempt, which ``spawn`` brings to life. ``wall`` gives UTC unix seconds."""

    connection: sqlite3.Connection
    workspace: Workspace
    ingest: MetricsIngest
    recorder: Recorder
    guard: Guard
    draining: Draining
    wall: Callable[[], float]
    spawn: Callable[[AttemptRecord], None]
    baselines: dict[str, dict[str, int | None]] = field(default_factory=dict)

    def standings(self) -> list[GpuStanding] | None:
        """How each GPU stands for the scheduler, or None before the first inventory."""
        return standings(self.connection, self.recorder, self.draining.uuids())

    def turn(self) -> None:
        """Start every queued run that may, and write down what the others wait for. Raises sqlite3.Error."""
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
        self.spawn(record)

    def _cannot_start(self, run: RunRecord, error: launching.LaunchError) -> None:
        if not (self.workspace.run_dir(run.run_id) / SPEC_FILE).exists():
            give_up(self.connection, self.workspace, run, "its folder is gone; launch it again", now=self.wall())
            return
        if isinstance(error.__cause__, ValueError):
            # What is in its files does not change by itself; a disk may.
            give_up(self.connection, self.workspace, run, f"cannot start: {error}", now=self.wall())
            return
        text = f"cannot start: {error}; trying again"
        if run.waiting_for == text:
            return
        is_new = not (run.waiting_for or "").startswith("cannot start:")
        with transaction(self.connection) as connection:
            repository.set_waiting_for(connection, run.run_id, text)
            if is_new:
                repository.add_event(connection, text, now=self.wall(), severity="warning", run_id=run.run_id)

    def baseline_of(self, run_id: str) -> dict[str, int | None]:
        """Memory in use in bytes on each GPU before the run's attempt began, by UUID; told once."""
        return self.baselines.pop(run_id, {})


def give_up(connection: sqlite3.Connection, workspace: Workspace, run: RunRecord, why: str, *, now: float) -> None:
    """End a run that cannot start (again) as failed, and owe its notices. ``now`` is UTC unix seconds."""
    notice = notice_of(workspace, run.run_id)
    kind, summary = last_incident(connection, run.run_id) or ("unknown", "it could not be started")
    with transaction(connection):
        repository.move(connection, run, RunState.FAILED, cause=why, now=now)
        repository.release_leases(connection, run.run_id)
        owe_notices(connection, notice, run, kind, summary, why, verdict="stop", now=now)
        repository.add_event(connection, why, now=now, severity="error", run_id=run.run_id)


def last_incident(connection: sqlite3.Connection, run_id: str) -> tuple[str, str] | None:
    """Kind and summary of a run's newest incident, or None where it met none."""
    row = connection.execute(
        "SELECT kind, summary FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run_id,)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def free_disk_bytes(workspace: Workspace) -> int:
    """What a run may still write into the home."""
    status = os.statvfs(workspace.state)
    return status.f_bavail * status.f_frsize
