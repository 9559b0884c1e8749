"""Reading a snapshot from the store. Unchanged parts are kept between reads."""

from __future__ import annotations

import sqlite3
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.curves.live_curves import CurveReader
from gputui.metrics.curves.model import ChartData
from gputui.store import alerts
from gputui.store.agent import read_agent
from gputui.store.events import read_news
from gputui.store.hardware import read_gpus, read_host, stale_after_seconds, with_age
from gputui.store.runs import Run, RunLookupError, find_run, holders
from gputui.ui.tui.data.machine import (
    GpuPageReader,
    IdleReader,
    ShortHistoryReader,
    StoreReading,
    full_disk_words,
    machine_state,
    resolved_alerts,
    unsent_words,
)
from gputui.ui.tui.data.run_rows import RunReader
from gputui.ui.views.snapshot import (
    GpuPage,
    Interest,
    Moment,
    Past,
    RunPage,
    Snapshot,
)

if TYPE_CHECKING:
    from gputui.runs.processes import ProcessReader
    from gputui.ui.tui.data.run_details import RunPageReader
    from gputui.ui.tui.data.studies import StudyReader

EVENTS_KEPT = 50
"""Events that can be scrolled to on the overview."""


class SnapshotReader:
    """Builds snapshots; one per feed. Not thread-safe.

    Attributes:
        _resolved: the past moment that was last asked for, and the time that it means.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._resolved: tuple[Moment, float] | None = None
        self._runs = RunReader()
        self._histories = ShortHistoryReader()
        self._curves = CurveReader()
        self._gpu_page = GpuPageReader()
        self._idle = IdleReader()

    @property
    def is_behind(self) -> bool:
        """Return whether the last snapshot left out something that the next one will have."""
        return self._runs.is_behind

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
        self._runs.begin()
        try:
            at = past = None
            if interest.moment is not None:
                at, past = self._past_of(connection, interest.moment, now)
            reading = StoreReading(connection, interest, now, at)
            runs = self._runs.runs(connection, at)
            owners = None if at is None else holders(runs)
            gpus = tuple(read_gpus(connection, now, at, owners))
            gpu_curves, host_curves = self._histories.read(reading)
            agent = read_agent(connection)
            snapshot = Snapshot(
                at=reading.moment,
                agent=agent,
                gpus=gpus,
                gpu_history=gpu_curves,
                host=read_host(connection, at),
                host_history=host_curves,
                runs=self._runs.rows(reading, runs),
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

    def _with_studies(self, reading: StoreReading, snapshot: Snapshot, runs: list[Run]) -> Snapshot:
        """The snapshot with its studies; most homes have none, and import nothing for one."""
        connection, interest, now, at = reading
        if connection.execute("SELECT 1 FROM studies LIMIT 1").fetchone() is not None:
            studies, states = self._studies.overview(connection, runs, at)
            snapshot = replace(snapshot, studies=studies, study_states=states)
        if interest.studies:
            page, all_studies = self._studies.page(connection, interest.study_id, runs, now, at)
            snapshot = replace(snapshot, study_page=page, all_studies=all_studies)
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
        progress, metric_names = self._runs.progress_of(reading, run)
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
