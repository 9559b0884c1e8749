"""GPU faults: evidence for an attempt's incident, and the end of an attempt that waits for a lost GPU. Heat is left to
the alerts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import GpuProgress, LiveAttempt
from gputui.machine.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT
from gputui.recovery.evidence import ObservedCause
from gputui.recovery.hardware import Sighting, observations
from gputui.runs.repository import transaction
from gputui.store import samples, series
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import add_event

LOOK_SECONDS = 2.0
# Events shortly before an attempt's start count too.
EARLY_SECONDS = 1.0
# A rank that lost its GPU fails within seconds, unless it hangs in the driver.
QUIET_SECONDS = 20.0
_GONE = FIRMWARE_SILENT | {FALLEN_OFF_THE_BUS}


def sightings(connection: sqlite3.Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """Driver events and risen error counters of these GPUs between two times (UTC unix seconds)."""
    seen = reports(connection, gpus, since, until)
    for uuid in gpus:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            seen += _risen(connection, uuid, row[0], since, until)
    return seen


def reports(connection: sqlite3.Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """The driver's events about these GPUs."""
    return [
        Sighting(at, uuid, event, code)
        for at, uuid, event, code in connection.execute(
            "SELECT at, uuid, event, code FROM gpu_events "
            "WHERE at BETWEEN ? AND ? AND uuid IN (SELECT value FROM json_each(?))",
            (since, until, json.dumps(list(gpus))),
        )
        if event in ("xid", "lost", "returned")
    ]


def _risen(connection: sqlite3.Connection, uuid: str, gpu_id: int, since: float, until: float) -> list[Sighting]:
    """Times when a GPU's counter of ECC errors rose or row remapping failed."""
    rises: list[Sighting] = []
    counted: int | None = None
    failed: bool | None = None
    columns = ("ecc_uncorrected", "row_remap_failed")
    for at, errors, remap_failed in samples.between(connection, series.SLOW, gpu_id, columns, since, until):
        if errors is not None:
            # The first value is from before the attempt; a smaller one means that the driver restarted.
            if counted is not None and errors > counted:
                rises.append(Sighting(at, uuid, "ecc", errors - counted))
            counted = errors
        if remap_failed is not None:
            if remap_failed and failed is False:
                rises.append(Sighting(at, uuid, "remap"))
            failed = bool(remap_failed)
    return rises


def hardware_evidence(
    connection: sqlite3.Connection, attempt: Attempt, nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """The driver's reports about an attempt's GPUs while it ran."""
    if not attempt.gpus:
        return ()
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    seen = sightings(connection, attempt.gpus, began - EARLY_SECONDS, ended_at)
    return observations(seen, attempt.gpus, nproc, ended_at=ended_at)


@dataclass(slots=True)
class GpuFaults:
    """Checks the GPUs of all live attempts. Stateless across agents."""

    context: AgentContext
    due: float = float("-inf")

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Check the GPUs of all live attempts if that is due. Raises sqlite3.Error."""
        now = self.context.monotonic()
        if now < self.due:
            return
        self.due = now + LOOK_SECONDS
        for attempt in living:
            if attempt.record.gpus:
                self._check(attempt)

    def _check(self, attempt: LiveAttempt) -> None:
        """Report once that a GPU of an attempt is lost, and end an attempt that waits for it. Raises sqlite3.Error."""
        record = attempt.record
        fresh = get_attempt(self.context.connection, record.run_id, record.number)
        if fresh is None or fresh.stop_requested is not None:
            return
        course = attempt.gpu_progress
        if course is None or course.step != fresh.last_step:
            is_ending = course is not None and course.is_ending
            course = attempt.gpu_progress = GpuProgress(fresh.last_step, self.context.monotonic(), is_ending)
        if not course.is_ending and self.context.monotonic() - course.moved_at >= QUIET_SECONDS:
            lost = self._lost_gpu(fresh)
            if lost is not None:
                course.is_ending = True
                quiet = f"{lost.text}; no step was made for {QUIET_SECONDS:.0f} s"
                may_end = attempt.resolved is None or attempt.resolved.policy.enabled
                with transaction(self.context.connection) as connection:
                    add_event(
                        connection,
                        "gpu_unresponsive",
                        f"{quiet}: ending this attempt" if may_end else quiet,
                        now=self.context.now(),
                        severity="error",
                        run_id=record.run_id,
                        attempt=record.number,
                    )
                if may_end:
                    attempt.executor.ask_to_end(at_once=True)

    def _lost_gpu(self, record: Attempt) -> ObservedCause | None:
        """A GPU of the attempt that has been off the bus or unresponsive since before QUIET_SECONDS; None if there is
        none."""
        began = record.started_at if record.started_at is not None else record.created_at
        now = self.context.now()
        relevant = [
            report
            for report in reports(self.context.connection, record.gpus, began - EARLY_SECONDS, now - QUIET_SECONDS)
            if report.what in ("lost", "returned") or report.code in _GONE
        ]
        return next(iter(observations(relevant, record.gpus, len(record.gpus), ended_at=now)), None)
