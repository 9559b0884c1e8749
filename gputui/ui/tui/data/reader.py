"""Reading a snapshot from the store. Unchanged parts are kept between reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.curves.live_curves import CurveReader
from gputui.metrics.curves.model import ChartData
from gputui.metrics.progress import Progress, RunTracker, progress_at
from gputui.store import alerts
from gputui.store.agent import read_agent
from gputui.store.events import read_news
from gputui.store.hardware import gpu_history, host_history, read_gpus, read_host, stale_after_seconds, with_age
from gputui.store.metrics import envelopes
from gputui.store.rollups import GpuHistory, HostHistory
from gputui.store.runs import Run, RunLookupError, find_run, holders, read_runs, runs_mark
from gputui.ui.tui.data.machine import (
    CostReader,
    GpuPageReader,
    IdleReader,
    StoreReading,
    full_disk_words,
    machine_state,
    resolved_alerts,
    unsent_words,
)
from gputui.ui.views.snapshot import (
    HISTORY_BUCKETS,
    HISTORY_SECONDS,
    GpuPage,
    Interest,
    Moment,
    Past,
    RunPage,
    RunRow,
    Snapshot,
)

if TYPE_CHECKING:
    from gputui.runs.processes import ProcessReader
    from gputui.ui.tui.data.run_details import RunPageReader
    from gputui.ui.tui.data.studies import StudyReader

EVENTS_KEPT = 50
RUNS_KEPT = 500
PAST_RUNS_KEPT = 200

OVER_RUNS_PER_READ = 3
"""Ended runs have their curve read once, a few per snapshot: a long history must not delay a frame."""

BYTES_AT_ONCE = 1 << 20
"""A run with more unreduced lines than this gets its curve in the second snapshot: the first must come at once."""

_AFTER_SAMPLE = 1e-3
"""Buckets exclude their end; so many seconds later they include a sample taken at the very moment."""

_BUCKET_SECONDS = HISTORY_SECONDS / HISTORY_BUCKETS


class SnapshotReader:
    """Builds snapshots; one per feed. Not thread-safe."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._bucket = -1
        self._short: tuple[Mapping[str, GpuHistory], HostHistory | None] = {}, None
        self._trackers: dict[str, RunTracker] = {}
        self._over: dict[tuple[str, float | None, int], Progress] = {}
        """Progress of ended runs, by run, end and attempt."""
        self._over_runs: list[Run] = []
        self._over_mark: object = None
        """`runs_mark` when the ended runs were read."""
        self._has_read = False
        self.is_behind = False
        """Whether the last snapshot left out something that the next one will have."""
        self._resolved: tuple[Moment, float] | None = None
        self._then: dict[str, tuple[Progress, tuple[str, ...]]] = {}
        """Progress and metric names of runs at the past moment being read."""
        self._curves = CurveReader()
        self._costs = CostReader()
        self._gpu_page = GpuPageReader()
        self._idle = IdleReader()

    # Imported on first use.

    @cached_property
    def run_page(self) -> RunPageReader:
        """The reader of a run's page."""
        from gputui.ui.tui.data.run_details import RunPageReader

        return RunPageReader(self._workspace, self._curves)

    @cached_property
    def _studies(self) -> StudyReader:
        from gputui.ui.tui.data.studies import StudyReader

        return StudyReader()

    @cached_property
    def processes(self) -> ProcessReader:
        """The reader of processes."""
        from gputui.runs.processes import ProcessReader

        return ProcessReader(self._workspace.runs)

    def read(self, connection: sqlite3.Connection, now: float, interest: Interest) -> Snapshot:
        """Read one consistent moment of the store, the present or that of ``interest``. Raises sqlite3.Error."""
        connection.execute("BEGIN")
        self.is_behind = False
        try:
            self._then.clear()
            at = past = None
            if interest.moment is not None:
                at, past = self._past_of(connection, interest.moment, now)
            reading = StoreReading(connection, interest, now, at)
            runs = self._runs(connection, at)
            owners = None if at is None else holders(runs)
            gpus = tuple(read_gpus(connection, now, at, owners))
            gpu_curves, host_curves = self._histories(reading)
            agent = read_agent(connection)
            snapshot = Snapshot(
                at=reading.moment,
                agent=agent,
                gpus=gpus,
                gpu_history=gpu_curves,
                host=read_host(connection, at),
                host_history=host_curves,
                runs=self._rows(reading, runs),
                events=tuple(read_news(connection, at, limit=EVENTS_KEPT)),
                page=self._page(reading, runs),
                compared=self._compared(reading),
                machine=machine_state(reading, agent, gpus),
                alerts=tuple(alerts.lasting(connection, at)),
                gpu_page=self._read_gpu_page(reading, runs),
                past=past,
            )
            if interest.alerts:
                snapshot = replace(snapshot, resolved_alerts=resolved_alerts(connection, at))
            snapshot = self._with_studies(reading, snapshot, runs)
            if at is None:
                return self._of_the_present(reading, snapshot)
            if agent is None:
                return snapshot
            # The store keeps only the newest agent. `Past.gap` tells whether any ran then; with GPUs recorded, it had
            # no problem with them.
            problem = None if gpus else agent.gpu_problem
            return replace(snapshot, agent=replace(agent, heartbeat_at=at, ended_at=None, gpu_problem=problem))
        finally:
            connection.execute("ROLLBACK")
            self._has_read = True

    def _with_studies(self, reading: StoreReading, snapshot: Snapshot, runs: list[Run]) -> Snapshot:
        """The snapshot with its studies; most homes have none, and import nothing for one."""
        connection, interest, now, at = reading
        if connection.execute("SELECT 1 FROM studies LIMIT 1").fetchone() is not None:
            studies, states = self._studies.overview(connection, runs, at)
            snapshot = replace(snapshot, studies=studies, study_states=states)
        if interest.studies:
            page = self._studies.page(connection, interest.study_id, runs, now, at)
            snapshot = replace(snapshot, study_page=page)
        return snapshot

    def _of_the_present(self, reading: StoreReading, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what is known only of the present: processes and problems."""
        connection, interest, now, _ = reading
        if interest.processes:
            processes = self.processes.read(snapshot.gpus)
            idle_since = self._idle.read(connection, snapshot.gpus, now)
            snapshot = replace(snapshot, processes=processes, idle_since=idle_since)
        problem = full_disk_words(self._workspace.state, snapshot.agent, now)
        return replace(snapshot, problem=problem, unsent=unsent_words(connection))

    def later(self, snapshot: Snapshot, now: float, interest: Interest) -> Snapshot:
        """The snapshot at a later time: clock, ages, log and processes change without the store."""
        if snapshot.past is not None:
            return replace(snapshot, past=snapshot.past._replace(now=now), problem=None)
        interval = snapshot.agent.interval_seconds if snapshot.agent else None
        stale_after = stale_after_seconds(interval)
        processes = self.processes.read(snapshot.gpus) if interest.processes else None
        page = snapshot.page
        if page is not None:
            page = self.run_page.later(page, interest)
        return replace(
            snapshot,
            at=now,
            gpus=tuple(with_age(gpu, now, stale_after) for gpu in snapshot.gpus),
            problem=full_disk_words(self._workspace.state, snapshot.agent, now),
            processes=processes,
            page=page,
        )

    def _past_of(self, connection: sqlite3.Connection, moment: Moment, now: float) -> tuple[float, Past]:
        # Imported on first use: most screens never show the past.
        from gputui.ui.tui.data.past import past_of

        request = moment
        if self._resolved is not None and self._resolved[0] == moment:
            # A request is resolved once, so that new events do not change it.
            request = Moment(self._resolved[1])
        at, past = past_of(connection, request, now)
        self._resolved = (moment, at)
        return at, past._replace(request=moment)

    def _histories(self, reading: StoreReading) -> tuple[Mapping[str, GpuHistory], HostHistory | None]:
        """The short histories. Those of the present end with the last full bucket, and are kept until the next one."""
        connection, _, now, at = reading
        bucket = int(now // _BUCKET_SECONDS)
        if at is None and bucket == self._bucket:
            return self._short
        end = bucket * _BUCKET_SECONDS if at is None else at + _AFTER_SAMPLE
        span = end - HISTORY_SECONDS, end, HISTORY_BUCKETS
        histories = gpu_history(connection, *span), host_history(connection, *span)
        if at is None:
            self._bucket = bucket
            self._short = histories
        return histories

    def _runs(self, connection: sqlite3.Connection, at: float | None) -> list[Run]:
        """All runs in the order of `in_order`."""
        if at is not None:
            return in_order(read_runs(connection, at, limit=PAST_RUNS_KEPT))
        mark = runs_mark(connection)
        if mark != self._over_mark:
            self._over_mark = mark
            self._over_runs = in_order(read_runs(connection, limit=RUNS_KEPT, over_only=True))
        return [*in_order(read_runs(connection, active_only=True)), *self._over_runs]

    def _rows(self, reading: StoreReading, runs: list[Run]) -> tuple[RunRow, ...]:
        connection, interest, _, at = reading
        if at is not None:
            return tuple(RunRow(run, self._progress_then(connection, run, at)) for run in runs)
        run_ids = {run.run_id for run in runs}
        self._trackers = {run_id: tracker for run_id, tracker in self._trackers.items() if run_id in run_ids}
        rows = []
        budget = OVER_RUNS_PER_READ
        for run in runs:
            if run.state.is_over and run.run_id != interest.run_id:
                key = (run.run_id, run.ended_at, run.attempt)
                if key not in self._over and budget:
                    budget -= 1
                    self._over[key] = self._progress(connection, run)
                    self._trackers.pop(run.run_id, None)
                progress = self._over.get(key) or Progress(step=run.last_step)
            else:
                progress = self._progress(connection, run)
            rows.append((run, progress))
        with_costs, is_behind = self._costs.read(connection, rows)
        self.is_behind |= is_behind
        return tuple(with_costs)

    def _progress(self, connection: sqlite3.Connection, run: Run) -> Progress:
        tracker = self._trackers.get(run.run_id)
        if tracker is None:
            tracker = self._trackers[run.run_id] = RunTracker(run.run_id)
        is_long = not self._has_read and envelopes.unreduced_bytes(connection, run.run_id) > BYTES_AT_ONCE
        self.is_behind |= is_long
        tracker.read(connection, run.attempt, with_curve=not is_long)
        return tracker.progress(run)

    def _progress_then(self, connection: sqlite3.Connection, run: Run, at: float) -> Progress:
        """A run's progress at a past moment; of an ended run that was not read before only the step: there may be
        hundreds."""
        if run.ended_at is None:
            self._then[run.run_id] = progress_at(connection, run, at)
            return self._then[run.run_id][0]
        return self._over.get((run.run_id, run.ended_at, run.attempt)) or Progress(step=run.last_step)

    def _page(self, reading: StoreReading, runs: list[Run]) -> RunPage | None:
        connection, interest, _, at = reading
        if interest.run_id is None:
            return None
        run = next((run for run in runs if run.run_id == interest.run_id), None)
        if run is None:
            try:
                run = find_run(connection, interest.run_id, at)
            except RunLookupError:
                return None
        if at is None:
            progress = self._progress(connection, run)
            metric_names = self._trackers[run.run_id].names
        else:
            progress, metric_names = self._then.get(run.run_id) or progress_at(connection, run, at)
        return self.run_page.read(reading, run, progress, metric_names)

    def _read_gpu_page(self, reading: StoreReading, runs: list[Run]) -> GpuPage | None:
        uuid = reading.interest.gpu_uuid
        if uuid is None:
            return None
        page = self._gpu_page.read(reading.connection, uuid, reading.interest.gpu_span_seconds, reading.moment)
        if reading.at is None:
            return page
        leased_since = next((run.attempt_started_at for run in runs if uuid in run.gpus), None)
        return page._replace(leased_since=leased_since)

    def _compared(self, reading: StoreReading) -> dict[str, ChartData]:
        connection, interest, now, at = reading
        run_ids = {*interest.compared, interest.run_id or ""}
        self._curves.keep(run_ids - {""})
        request = interest.charts
        if request is None:
            return {}
        return {run_id: self._curves.read(connection, run_id, request, now, at) for run_id in interest.compared}


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Active runs, newest first; waiting runs in the order of the queue; ended runs, the last ended first. ``runs`` are
    newest first."""
    queued = [run for run in runs if run.state == "queued"]
    queued.sort(key=lambda run: (-run.priority, run.queued_at or 0.0, run.sequence))
    over = [run for run in runs if run.state.is_over]
    over.sort(key=lambda run: -(run.ended_at or 0.0))
    return [*(run for run in runs if run.state != "queued" and not run.state.is_over), *queued, *over]
