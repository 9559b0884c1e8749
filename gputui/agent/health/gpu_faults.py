"""What the sampler has seen of a living or ended attempt's GPUs: evidence for its incident, and an end to an attempt
whose GPU is gone while its ranks wait for it. Of heat the alerts tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import GpuProgress, LiveAttempt
from gputui.gpu.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT
from gputui.recovery.evidence import Observation
from gputui.recovery.hardware import Sighting, observations
from gputui.runs.repository import transaction
from gputui.store import samples, series
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import add_event

LOOK_SECONDS = 2.0
# The sampler's own start may lie between an event and the attempt's first row.
EARLY_SECONDS = 1.0
# A rank that lost its GPU fails with its next call, within seconds; one that does not waits in the driver.
QUIET_SECONDS = 20.0
_GONE = FIRMWARE_SILENT | {FALLEN_OFF_THE_BUS}


def sightings(connection: sqlite3.Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """What was recorded of these GPUs between two moments (UTC unix seconds)."""
    found = reports(connection, gpus, since, until)
    for uuid in gpus:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            found += _risen(connection, uuid, row[0], since, until)
    return found


def reports(connection: sqlite3.Connection, gpus: Sequence[str], since: float, until: float) -> list[Sighting]:
    """What the driver reported of them by itself."""
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
    """Where a GPU's counter of ECC errors rose, and where row remapping failed."""
    found: list[Sighting] = []
    counted: int | None = None
    failed: bool | None = None
    columns = ("ecc_uncorrected", "row_remap_failed")
    for at, errors, remap_failed in samples.between(connection, series.SLOW, gpu_id, columns, since, until):
        if errors is not None:
            # The first value precedes this attempt; a smaller one means that the driver restarted.
            if counted is not None and errors > counted:
                found.append(Sighting(at, uuid, "ecc", errors - counted))
            counted = errors
        if remap_failed is not None:
            if remap_failed and failed is False:
                found.append(Sighting(at, uuid, "remap"))
            failed = bool(remap_failed)
    return found


def hardware_evidence(
    connection: sqlite3.Connection, attempt: Attempt, nproc: int, *, ended_at: float
) -> tuple[Observation, ...]:
    """The driver's reports about an attempt's GPUs while it ran."""
    if not attempt.gpus:
        return ()
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    seen = sightings(connection, attempt.gpus, began - EARLY_SECONDS, ended_at)
    return observations(seen, attempt.gpus, nproc, ended_at=ended_at)


@dataclass(slots=True)
class GpuFaults:
    """The GPUs of all living attempts. Nothing is kept that a successor could not find out again."""

    context: AgentContext
    due: float = float("-inf")

    def turn(self, living: Collection[LiveAttempt]) -> None:
        """Look at the GPUs of all attempts that are alive, when it is time. Raises sqlite3.Error."""
        now = self.context.monotonic()
        if now < self.due:
            return
        self.due = now + LOOK_SECONDS
        for attempt in living:
            if attempt.record.gpus:
                self._look(attempt)

    def _look(self, attempt: LiveAttempt) -> None:
        record = attempt.record
        fresh = get_attempt(self.context.connection, record.run_id, record.number)
        if fresh is None or fresh.stop_requested is not None:
            return
        course = attempt.gpu_progress
        if course is None or course.step != fresh.last_step:
            is_ending = course is not None and course.is_ending
            course = attempt.gpu_progress = GpuProgress(fresh.last_step, self.context.monotonic(), is_ending)
        if not course.is_ending and self.context.monotonic() - course.moved_at >= QUIET_SECONDS:
            gone = self._gone(fresh)
            if gone is not None:
                course.is_ending = True
                quiet = f"{gone.text}; no step was made for {QUIET_SECONDS:.0f} s"
                # Whether the run's policy does anything at all.
                may_end = attempt.resolved is None or attempt.resolved.policy.enabled
                self._tell(record, f"{quiet}: ending this attempt" if may_end else quiet)
                if may_end:
                    attempt.executor.ask_to_end(at_once=True)

    def _gone(self, record: Attempt) -> Observation | None:
        """A GPU of the attempt that is off the bus or answers nothing, for as long as no step was made."""
        began = record.started_at if record.started_at is not None else record.created_at
        now = self.context.now()
        seen = [
            one
            for one in reports(self.context.connection, record.gpus, began - EARLY_SECONDS, now - QUIET_SECONDS)
            if one.what in ("lost", "returned") or one.code in _GONE
        ]
        return next(iter(observations(seen, record.gpus, len(record.gpus), ended_at=now)), None)

    def _tell(self, record: Attempt, text: str) -> None:
        with transaction(self.context.connection) as connection:
            add_event(
                connection,
                "gpu_unresponsive",
                text,
                now=self.context.now(),
                severity="error",
                run_id=record.run_id,
                attempt=record.number,
            )
