"""What the overview and the page of a GPU show beyond samples and runs, from the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.recovery.cost import Cost, costs, total
from gputui.store import queue
from gputui.store.hardware import (
    gpu_events,
    gpu_history,
    leased_since,
    memory_temperature_history,
    quarantined,
    xid_counts,
)
from gputui.store.metrics.step_times import StepTimes
from gputui.store.rollups import GpuHistory
from gputui.store.runs import Run, read_attempts, read_decisions, read_incidents
from gputui.tui.data.snapshot import GpuPage, MachineState, Progress, RunRow

XID_SECONDS = 86_400.0
"""XIDs count for a day."""

GPU_BUCKETS = 120

EVENTS_OF_A_GPU = 40

# Costs are worked out from a run's rows when something about it has changed, so many runs in one go.
COSTS_PER_READ = 4


def machine_state(connection: sqlite3.Connection, now: float, at: float | None = None) -> MachineState:
    """The machine now, or ``at`` a past moment as far as it is known: of a quarantine or a pause that has ended since,
    nothing is kept. Raises sqlite3.Error."""
    failed, pause = quarantined(connection), queue.pause(connection)
    if at is not None:
        failed = {uuid: found for uuid, found in failed.items() if found.since <= at}
        pause = pause if pause is not None and pause.at <= at else None
    seen = now if at is None else at
    return MachineState(quarantined=failed, queue_pause=pause, xids=xid_counts(connection, seen - XID_SECONDS, seen))


class GpuPageReader:
    """Reads the page of one GPU; its curves anew only when another bucket of time is full."""

    def __init__(self) -> None:
        self._known: tuple[str, float, int] | None = None
        self._history: GpuHistory | None = None
        self._memory: tuple[float | None, ...] = ()

    def read(self, connection: sqlite3.Connection, uuid: str, span_seconds: float, now: float) -> GpuPage:
        """What is known of a GPU up to ``now`` (UTC unix seconds). Raises sqlite3.Error."""
        bucket_seconds = span_seconds / GPU_BUCKETS
        bucket = int(now // bucket_seconds)
        if (uuid, span_seconds, bucket) != self._known:
            until = bucket * bucket_seconds
            since = until - span_seconds
            self._history = gpu_history(connection, since, until, GPU_BUCKETS, uuid).get(uuid)
            self._memory = memory_temperature_history(connection, uuid, since, until, GPU_BUCKETS)
            self._known = (uuid, span_seconds, bucket)
        return GpuPage(
            uuid=uuid,
            span_seconds=span_seconds,
            history=self._history,
            memory_temperatures=self._memory,
            events=tuple(gpu_events(connection, uuid, now, EVENTS_OF_A_GPU)),
            leased_since=leased_since(connection, uuid),
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """A run's cost, and what it was worked out from."""

    basis: tuple[object, ...]
    cost: Cost | None


class CostReader:
    """What the failures of each run cost; worked out again when the run has moved on."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def read(self, connection: sqlite3.Connection, runs: Sequence[tuple[Run, Progress]]) -> tuple[list[RunRow], bool]:
        """The rows with their costs, and whether some of them are still to come. Raises sqlite3.Error."""
        met = dict(connection.execute("SELECT run_id, count(*) FROM incidents GROUP BY run_id").fetchall())
        self._known = {run_id: known for run_id, known in self._known.items() if run_id in met}
        left = COSTS_PER_READ
        is_behind = False
        rows = []
        for run, progress in runs:
            known = None
            if run.run_id in met:
                known = self._known.get(run.run_id)
                # The next attempt's first step ends what an incident costs; no later one changes it.
                basis = (met[run.run_id], run.state, run.attempt, bool(progress.ranks))
                if known is None or known.basis != basis:
                    if left:
                        left -= 1
                        known = self._known[run.run_id] = _Known(basis, _cost(connection, run.run_id))
                    else:
                        is_behind = True
            rows.append(RunRow(run, progress, known.cost if known else None))
        return rows, is_behind


def _cost(connection: sqlite3.Connection, run_id: str) -> Cost | None:
    found = costs(
        read_attempts(connection, run_id),
        read_incidents(connection, run_id),
        read_decisions(connection, run_id),
        StepTimes(connection, run_id),
    )
    return total(found.values())
