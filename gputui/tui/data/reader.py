"""From the store to a snapshot. Keeps between reads what need not be read again."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gputui.config import Workspace
from gputui.curves.model import ChartData
from gputui.store import envelopes, queries
from gputui.store.views import GpuHistory, GpuView, HostHistory, RunView
from gputui.tui.data.alerts import read_alerts
from gputui.tui.data.curves import CurveReader
from gputui.tui.data.disk_space import full_disk_words
from gputui.tui.data.idle_gpus import IdleReader
from gputui.tui.data.machine import CostReader, GpuPageReader, machine_state
from gputui.tui.data.progress import RunTracker
from gputui.tui.data.snapshot import (
    HISTORY_BUCKETS,
    HISTORY_SECONDS,
    Interest,
    Moment,
    ProcessSet,
    Progress,
    RunPage,
    RunRow,
    Snapshot,
)

if TYPE_CHECKING:
    from gputui.tui.data.past_reader import PastPageReader
    from gputui.tui.data.processes import ProcessReader
    from gputui.tui.data.run_details import RunPageReader

EVENTS_KEPT = 50
RUNS_KEPT = 500

# Runs that are over have their curve read once, so many in one go: a long history must not delay a frame.
OVER_RUNS_PER_READ = 3

# A run of which more than this must be read line by line shows its curve only in the second snapshot: the first must
# come at once.
BYTES_AT_ONCE = 1 << 20

_BUCKET_SECONDS = HISTORY_SECONDS / HISTORY_BUCKETS


@dataclass(frozen=True, slots=True)
class _Over:
    """A run that is over, as it was when its curve was read."""

    ended_at: float | None
    attempt: int
    progress: Progress


class SnapshotReader:
    """Builds snapshots; one per feed. Not for several threads at once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._bucket = -1
        self._gpu_history: Mapping[str, GpuHistory] = {}
        self._host_history: HostHistory | None = None
        self._trackers: dict[str, RunTracker] = {}
        self._over: dict[str, _Over] = {}
        self._over_runs: list[RunView] = []
        self._over_mark: tuple[int, int] | None = None
        self._has_read = False
        self.is_behind = False
        """Whether the last snapshot left something out that the next one will hold."""
        self._resolved: tuple[Moment, float] | None = None
        self._curves = CurveReader()
        self._run_page: RunPageReader | None = None
        self._past_page: PastPageReader | None = None
        self._costs = CostReader()
        self._gpu_page = GpuPageReader()
        self.processes: ProcessReader | None = None
        self._idle = IdleReader()

    def read(self, connection: sqlite3.Connection, now: float, interest: Interest) -> Snapshot:
        """One consistent moment of the store. Raises sqlite3.Error."""
        connection.execute("BEGIN")
        self.is_behind = False
        try:
            if interest.moment is not None:
                return self._read_past(connection, interest.moment, now, interest)
            self._read_history(connection, now)
            runs = self._runs(connection)
            agent = queries.agent(connection)
            gpus = tuple(queries.gpus(connection, now))
            return Snapshot(
                at=now,
                agent=agent,
                gpus=gpus,
                gpu_history=self._gpu_history,
                host=queries.host(connection),
                host_history=self._host_history,
                runs=self._rows(connection, runs, interest),
                events=tuple(queries.events(connection, limit=EVENTS_KEPT)),
                page=self._page(connection, runs, interest),
                compared=self._compared(connection, interest),
                machine=machine_state(connection, now),
                alerts=read_alerts(connection, interest.alerts),
                gpu_page=None
                if interest.gpu_uuid is None
                else self._gpu_page.read(connection, interest.gpu_uuid, interest.gpu_span_seconds, now),
                processes=self._read_processes(gpus) if interest.processes else None,
                idle_since=self._idle.read(connection, gpus, now) if interest.processes else {},
                trouble=full_disk_words(self._workspace.state, agent, now),
            )
        finally:
            connection.execute("ROLLBACK")
            self._has_read = True

    def wait_for_checkpoints(self, seconds: float) -> None:
        """Wait until what is being looked up of a run's checkpoints is known."""
        if self._run_page is not None:
            self._run_page.checkpoints.wait(seconds)

    def later(self, snapshot: Snapshot, now: float, interest: Interest) -> Snapshot:
        """The same snapshot a moment later: the log moves on without the store, and the clock too."""
        if snapshot.past is not None:
            return replace(snapshot, past=replace(snapshot.past, now=now), trouble=None)
        stale_after = queries.stale_after_seconds(snapshot.agent.interval_seconds if snapshot.agent else None)
        moved = replace(
            snapshot,
            at=now,
            gpus=tuple(queries.aged(gpu, now, stale_after) for gpu in snapshot.gpus),
            trouble=full_disk_words(self._workspace.state, snapshot.agent, now),
            processes=self._read_processes(snapshot.gpus) if interest.processes else None,
        )
        if snapshot.page is None:
            return moved
        page = snapshot.page
        return replace(moved, page=self._page_reader().later(page, interest))

    def _read_past(self, connection: sqlite3.Connection, moment: Moment, now: float, interest: Interest) -> Snapshot:
        # Only those who look back load what that needs.
        from gputui.curves.past import cut
        from gputui.tui.data.past_reader import PastPageReader, read_past, standing

        if self._past_page is None:
            self._past_page = PastPageReader(self._curves)
        if self._resolved is not None and self._resolved[0] == moment:
            # What was meant stays, whatever happens meanwhile.
            moment_read = Moment(self._resolved[1])
        else:
            moment_read = moment
        over = {(run_id, found.ended_at): found.progress for run_id, found in self._over.items()}
        snapshot = read_past(connection, moment_read, now, over)
        self._resolved = (moment, snapshot.at)
        if snapshot.past is not None:
            snapshot = replace(snapshot, past=replace(snapshot.past, asked=moment))
        if interest.gpu_uuid is not None:
            held = next((row.run for row in snapshot.runs if interest.gpu_uuid in row.run.gpus), None)
            page = self._gpu_page.read(connection, interest.gpu_uuid, interest.gpu_span_seconds, snapshot.at)
            snapshot = replace(
                snapshot, gpu_page=replace(page, leased_since=held.attempt_started_at if held is not None else None)
            )
        return replace(
            snapshot,
            page=None
            if interest.run_id is None
            else self._past_page.read(
                connection,
                interest.run_id,
                snapshot.at,
                now,
                interest.charts,
                lambda run: self._page_reader().log(run, interest),
                lambda run: self._page_reader().checkpoints.read(run, interest.checkpoint_to_check),
            ),
            alerts=read_alerts(connection, interest.alerts, snapshot.at),
            compared={
                run_id: cut(data, standing(connection, run_id, snapshot.at))
                for run_id, data in self._compared(connection, interest).items()
            },
        )

    def _read_history(self, connection: sqlite3.Connection, now: float) -> None:
        """Short histories end with the last full bucket: nothing in them moves in between."""
        bucket = int(now // _BUCKET_SECONDS)
        if bucket == self._bucket:
            return
        self._bucket = bucket
        until = bucket * _BUCKET_SECONDS
        self._gpu_history = queries.gpu_history(connection, until - HISTORY_SECONDS, until, HISTORY_BUCKETS)
        self._host_history = queries.host_history(connection, until - HISTORY_SECONDS, until, HISTORY_BUCKETS)

    def _runs(self, connection: sqlite3.Connection) -> list[RunView]:
        """Those that run, then those that wait as they wait, then those that are over, newest first."""
        mark = queries.runs_mark(connection)
        if mark != self._over_mark:
            self._over_mark = mark
            self._over_runs = queries.runs(connection, limit=RUNS_KEPT, over_only=True)
            self._over_runs.sort(key=lambda run: -(run.ended_at or 0.0))
        active = queries.runs(connection, active_only=True)
        queued = sorted(
            (run for run in active if run.state == "queued"),
            key=lambda run: (-run.priority, run.queued_at or 0.0, run.sequence),
        )
        return [*(run for run in active if run.state != "queued"), *queued, *self._over_runs]

    def _rows(self, connection: sqlite3.Connection, runs: list[RunView], interest: Interest) -> tuple[RunRow, ...]:
        known = {run.run_id for run in runs}
        for gone in [run_id for run_id in self._trackers if run_id not in known]:
            del self._trackers[gone]
        rows = []
        budget = OVER_RUNS_PER_READ
        for run in runs:
            if run.state in queries.OVER_STATES and run.run_id != interest.run_id:
                found = self._over.get(run.run_id)
                if (found is None or (found.ended_at, found.attempt) != (run.ended_at, run.attempt)) and budget:
                    budget -= 1
                    found = _Over(run.ended_at, run.attempt, self._progress(connection, run))
                    self._over[run.run_id] = found
                    self._trackers.pop(run.run_id, None)
                progress = found.progress if found else Progress(step=run.attempt_last_step)
            else:
                progress = self._progress(connection, run)
            rows.append((run, progress))
        with_costs, is_behind = self._costs.read(connection, rows)
        self.is_behind |= is_behind
        return tuple(with_costs)

    def _progress(self, connection: sqlite3.Connection, run: RunView) -> Progress:
        tracker = self._trackers.get(run.run_id)
        if tracker is None:
            tracker = self._trackers[run.run_id] = RunTracker(run.run_id)
        is_long = not self._has_read and envelopes.unreduced_bytes(connection, run.run_id) > BYTES_AT_ONCE
        self.is_behind |= is_long
        tracker.read(connection, run.attempt, with_curve=not is_long)
        return tracker.progress(run)

    def _page(self, connection: sqlite3.Connection, runs: list[RunView], interest: Interest) -> RunPage | None:
        if interest.run_id is None:
            return None
        run = next((run for run in runs if run.run_id == interest.run_id), None)
        if run is None:
            try:
                run = queries.run(connection, interest.run_id)
            except queries.RunLookupError:
                return None
        progress = self._progress(connection, run)
        tracker = self._trackers[run.run_id]
        return self._page_reader().read(connection, run, progress, tracker.names, interest)

    def _page_reader(self) -> RunPageReader:
        """Only those who open the page of a run load what that needs."""
        if self._run_page is None:
            from gputui.tui.data.run_details import RunPageReader

            self._run_page = RunPageReader(self._workspace, self._curves)
        return self._run_page

    def _read_processes(self, gpus: Sequence[GpuView]) -> ProcessSet:
        if self.processes is None:
            from gputui.tui.data.processes import ProcessReader

            self.processes = ProcessReader(self._workspace)
        return self.processes.read(gpus)

    def _compared(self, connection: sqlite3.Connection, interest: Interest) -> dict[str, ChartData]:
        self._curves.keep({*interest.compared, *([interest.run_id] if interest.run_id else [])})
        request = interest.charts
        if request is None:
            return {}
        return {
            run_id: self._curves.read(connection, run_id, queries.attempts(connection, run_id), request)
            for run_id in interest.compared
        }
