"""What the driver reported about the GPUs of an attempt: events, and error counters that rose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from sqlite3 import Connection

from gputui.machine.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT
from gputui.recovery import driver_reports
from gputui.recovery.driver_reports import Sighting
from gputui.recovery.evidence import ObservedCause
from gputui.store import samples, series
from gputui.store.attempts import Attempt

# Events shortly before an attempt's start count too.
EARLY_SECONDS = 1.0
_GONE = FIRMWARE_SILENT | {FALLEN_OFF_THE_BUS}


def hardware_evidence(
    connection: Connection, attempt: Attempt, nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """The driver's reports about an attempt's GPUs while it ran."""
    seen = sightings(connection, attempt.gpus, _since(attempt), ended_at)
    return driver_reports.observations(seen, attempt.gpus, nproc, ended_at=ended_at)


def lost_gpu(connection: Connection, attempt: Attempt, until: float, now: float) -> ObservedCause | None:
    """A GPU of the attempt that has been off the bus or unresponsive since before ``until``."""
    gone = []
    for report in _reports(connection, attempt.gpus, _since(attempt), now):
        is_loss = report.what == "lost" or report.code in _GONE
        if report.what == "returned" or (report.at <= until and is_loss):
            gone.append(report)
    found = driver_reports.observations(gone, attempt.gpus, len(attempt.gpus), ended_at=now)
    return next(iter(found), None)


def sightings(connection: Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """Driver events and risen error counters of these GPUs between two times (UTC unix seconds)."""
    seen = _reports(connection, gpus, since, until)
    for uuid in gpus:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            seen += _risen(connection, uuid, row[0], since, until)
    return seen


def _since(attempt: Attempt) -> float:
    begun = attempt.created_at if attempt.started_at is None else attempt.started_at
    return begun - EARLY_SECONDS


def _reports(connection: Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    rows = connection.execute(
        "SELECT at, uuid, event, code FROM gpu_events WHERE at BETWEEN ? AND ? "
        "AND event IN ('xid', 'lost', 'returned') AND uuid IN (SELECT value FROM json_each(?))",
        (since, until, json.dumps(list(gpus))),
    )
    return [Sighting(*row) for row in rows]


def _risen(connection: Connection, uuid: str, gpu_id: int, since: float, until: float) -> Iterator[Sighting]:
    """Times when a GPU's counter of ECC errors rose or row remapping failed."""
    counted: int | None = None
    failed: bool | None = None
    columns = ("ecc_uncorrected", "row_remap_failed")
    rows = samples.between(connection, series.SLOW, gpu_id, columns, since, until)
    for at, errors, remap_failed in rows:
        if errors is not None:
            # The first value is from before the attempt; a smaller one means that the driver
            # restarted.
            if counted is not None and errors > counted:
                yield Sighting(at, uuid, "ecc", errors - counted)
            counted = errors
        if remap_failed is not None:
            if remap_failed and failed is False:
                yield Sighting(at, uuid, "remap")
            failed = bool(remap_failed)
