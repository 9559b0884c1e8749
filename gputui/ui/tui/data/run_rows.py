"""Reading the runs of a snapshot, with their progress and the costs of their failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gputui.metrics.progress import Progress, RunTracker, progress_at
from gputui.recovery.costs import Cost
from gputui.recovery.run_history import RunHistory, total_cost
from gputui.store.metrics import envelopes
from gputui.store.runs import Run, read_runs, runs_mark
from gputui.ui.tui.data.machine import StoreReading
from gputui.ui.views.snapshot import RunRow

RUNS_KEPT = 500
PAST_RUNS_KEPT = 200
"""Ended runs in the list, and runs of a past moment, whose progress is read each time."""

OVER_RUNS_PER_READ = 3
"""Ended runs have their curve read once, a few per snapshot: a long history must not delay a frame."""

BYTES_AT_ONCE = 1 << 20
"""A run with more unreduced lines than this gets its curve in the second snapshot: the first must come at once."""

COSTS_PER_READ = 4
"""How many changed runs have their costs computed for one snapshot: each reads a run's whole history."""


class RunReader:
    """Reads the runs; what is known of an ended run is read once.

    Attributes:
        is_behind: whether the last read left out something that the next one will have.
        _trackers: the metrics of each run so far, by its id.
        _over: the progress of each ended run, by its id, end and attempt.
        _over_runs: the ended runs in their order.
        _over_mark: what `runs_mark` was when the ended runs were read.
        _then: the progress of each run and its metrics at the past moment being read, by its id.
        _reads: how many snapshots were read.
    """

    def __init__(self) -> None:
        self.is_behind = False
        self._trackers: dict[str, RunTracker] = {}
        self._over: dict[tuple[str, float | None, int], Progress] = {}
        self._over_runs: list[Run] = []
        self._over_mark: object = None
        self._then: dict[str, tuple[Progress, tuple[str, ...]]] = {}
        self._costs = CostReader()
        self._reads = 0

    def begin(self) -> None:
        """Begin with another snapshot."""
        self.is_behind = False
        self._then.clear()
        self._reads += 1

    def runs(self, connection: sqlite3.Connection, at: float | None) -> list[Run]:
        """All runs in the order of `in_order`. Raises sqlite3.Error."""
        if at is not None:
            return in_order(read_runs(connection, at, limit=PAST_RUNS_KEPT))
        mark = runs_mark(connection)
        if mark != self._over_mark:
            self._over_mark = mark
            self._over_runs = in_order(read_runs(connection, limit=RUNS_KEPT, over_only=True))
        return [*in_order(read_runs(connection, active_only=True)), *self._over_runs]

    def rows(self, reading: StoreReading, runs: Sequence[Run]) -> tuple[RunRow, ...]:
        """The rows of these runs. Raises sqlite3.Error."""
        connection, interest, _, at = reading
        if at is not None:
            return tuple(RunRow(run, self._progress_then(connection, run, at)) for run in runs)
        run_ids = {run.run_id for run in runs}
        self._trackers = {run_id: tracker for run_id, tracker in self._trackers.items() if run_id in run_ids}
        with_progress = []
        budget = OVER_RUNS_PER_READ
        for run in runs:
            if not run.state.is_over or run.run_id == interest.run_id:
                with_progress.append((run, self._progress(connection, run)))
                continue
            key = (run.run_id, run.ended_at, run.attempt)
            if key not in self._over and budget:
                budget -= 1
                self._over[key] = self._progress(connection, run)
                self._trackers.pop(run.run_id, None)
            with_progress.append((run, self._known_progress(run)))
        with_costs, is_behind = self._costs.read(connection, with_progress)
        self.is_behind |= is_behind
        return tuple(with_costs)

    def progress_of(self, reading: StoreReading, run: Run) -> tuple[Progress, tuple[str, ...]]:
        """The progress of the run whose page is open, and the names of its metrics. Raises sqlite3.Error."""
        if reading.at is not None:
            return self._then.get(run.run_id) or progress_at(reading.connection, run, reading.at)
        progress = self._progress(reading.connection, run)
        return progress, self._trackers[run.run_id].names

    def _progress(self, connection: sqlite3.Connection, run: Run) -> Progress:
        tracker = self._trackers.get(run.run_id)
        if tracker is None:
            tracker = self._trackers[run.run_id] = RunTracker(run.run_id)
        is_long = self._reads == 1 and envelopes.unreduced_bytes(connection, run.run_id) > BYTES_AT_ONCE
        self.is_behind |= is_long
        tracker.read(connection, run.attempt, with_curve=not is_long)
        return tracker.progress(run)

    def _progress_then(self, connection: sqlite3.Connection, run: Run, at: float) -> Progress:
        """A run's progress at a past moment; of an ended run only what is known, as there may be hundreds."""
        if run.ended_at is not None:
            return self._known_progress(run)
        progress, metric_names = progress_at(connection, run, at)
        self._then[run.run_id] = progress, metric_names
        return progress

    def _known_progress(self, run: Run) -> Progress:
        """The progress of an ended run; only its step until it was read."""
        return self._over.get((run.run_id, run.ended_at, run.attempt)) or Progress(step=run.last_step)


class CostReader:
    """Computes the costs of each run's failures, again when the run changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], Cost | None]] = {}
        """The cost of each run, behind the values that it was computed from."""

    def read(self, connection: sqlite3.Connection, runs: Sequence[tuple[Run, Progress]]) -> tuple[list[RunRow], bool]:
        """The rows with their costs, and whether some of them are still to come. Raises sqlite3.Error."""
        # The checkpoint of the newest attempt may be reported after its start.
        incidents = {
            run_id: count_and_start
            for run_id, *count_and_start in connection.execute(
                "SELECT run_id, count(*), (SELECT json_array(a.started_at, a.resumed_from) FROM attempts AS a "
                "WHERE a.run_id = i.run_id ORDER BY a.number DESC LIMIT 1) FROM incidents AS i GROUP BY run_id"
            ).fetchall()
        }
        self._known = {run_id: self._known[run_id] for run_id in self._known.keys() & incidents.keys()}
        budget = COSTS_PER_READ
        is_behind = False
        rows = []
        for run, progress in runs:
            if run.run_id not in incidents:
                rows.append(RunRow(run, progress))
                continue
            # The cost of an incident is final with the next attempt's first step.
            basis = (*incidents[run.run_id], run.state, run.attempt, bool(progress.ranks))
            computed_from, cost = self._known.get(run.run_id, (None, None))
            if computed_from != basis and budget:
                budget -= 1
                cost = total_cost(RunHistory.read(connection, run).failures())
                self._known[run.run_id] = basis, cost
            elif computed_from != basis:
                is_behind = True
            rows.append(RunRow(run, progress, cost))
        return rows, is_behind


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Active runs, newest first; waiting runs in the order of the queue; ended runs, the last ended first. ``runs`` are
    newest first."""
    queued = [run for run in runs if run.state == "queued"]
    queued.sort(key=lambda run: (-run.priority, run.queued_at or 0.0, run.sequence))
    over = [run for run in runs if run.state.is_over]
    over.sort(key=lambda run: -(run.ended_at or 0.0))
    return [*(run for run in runs if run.state != "queued" and not run.state.is_over), *queued, *over]
