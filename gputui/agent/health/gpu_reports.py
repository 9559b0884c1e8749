"""Reports of the driver about the GPUs of an attempt: events, and error counters that rose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from sqlite3 import Connection

from gputui.recovery import driver_reports
from gputui.recovery.driver_reports import Sighting
from gputui.recovery.evidence import AttemptGpus, ObservedCause
from gputui.store import hardware, samples, series
from gputui.store.attempts import Attempt

# Events shortly before an attempt's start count too.
EARLY_SECONDS = 1.0
# Counters are read every 5 s: a rise before the first reading of an attempt shows against the last
# one before it. An older reading would also show errors of other programs.
BASELINE_SECONDS = 15.0
# The last seconds of an attempt: an exception may need some to end all its processes.
LAST_SECONDS = 30.0


def hardware_evidence(
    connection: Connection, attempt: Attempt, nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """The driver's reports about an attempt's GPUs while it ran."""
    reports = sightings(connection, attempt.gpus, _since(attempt), ended_at)
    return driver_reports.observations(reports, attempt.gpus, nproc, ended_at=ended_at)


def gpu_use(connection: Connection, attempt: Attempt, ended_at: float) -> AttemptGpus:
    """An attempt's GPUs, and the use of their memory in its last seconds."""
    since = max(_since(attempt), ended_at - LAST_SECONDS)
    percent = hardware.memory_percent(connection, attempt.gpus, since, ended_at)
    return AttemptGpus(attempt.gpu_count or 0, percent)


def lost_gpu(connection: Connection, attempt: Attempt, lost_by: float, now: float) -> ObservedCause | None:
    """A GPU that has been lost since before ``lost_by``, so that the attempt may hang."""
    # The GPU may have returned after ``lost_by``.
    losses_and_returns = [
        report
        for report in _driver_events(connection, attempt.gpus, _since(attempt), now)
        if report.what == "returned" or (report.may_hang_calls and report.at <= lost_by)
    ]
    causes = driver_reports.observations(losses_and_returns, attempt.gpus, len(attempt.gpus), ended_at=now)
    return next(iter(causes), None)


def sightings(connection: Connection, gpus: Sequence[str], since: float, end: float) -> list[Sighting]:
    """Driver events and risen error counters of these GPUs between two times (UTC unix seconds)."""
    reports = _driver_events(connection, gpus, since, end)
    for uuid, gpu_id in samples.gpu_ids(connection, gpus).items():
        reports += _risen_counters(connection, uuid, gpu_id, since, end)
    return reports


def _since(attempt: Attempt) -> float:
    begun = attempt.started_at
    if begun is None:
        begun = attempt.created_at
    return begun - EARLY_SECONDS


def _driver_events(connection: Connection, gpus: Sequence[str], since: float, end: float) -> list[Sighting]:
    rows = connection.execute(
        "SELECT at, uuid, event, code FROM gpu_events WHERE at BETWEEN ? AND ? "
        "AND event IN ('xid', 'lost', 'returned') AND uuid IN (SELECT value FROM json_each(?))",
        (since, end, json.dumps(list(gpus))),
    )
    return [Sighting(*row) for row in rows]


def _risen_counters(connection: Connection, uuid: str, gpu_id: int, since: float, end: float) -> Iterator[Sighting]:
    """Times when a GPU's counter of ECC errors rose or row remapping failed."""
    errors_before: int | None = None
    had_failed: bool | None = None
    columns = ("ecc_uncorrected", "row_remap_failed")
    rows = samples.between(connection, series.SLOW, gpu_id, columns, (since - BASELINE_SECONDS, end))
    for at, errors, has_failed in rows:
        if errors is not None:
            # A smaller value means that the driver restarted.
            if at >= since and errors_before is not None and errors > errors_before:
                yield Sighting(at, uuid, "ecc", errors - errors_before)
            errors_before = errors
        if has_failed is not None:
            if at >= since and has_failed and had_failed is False:
                yield Sighting(at, uuid, "remap")
            had_failed = bool(has_failed)
