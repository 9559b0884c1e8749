"""Placements of remote attempts: one row per attempt, as its executor last reported in
placement.json of the attempt's folder (docs/architecture.md)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from gputui.core.redaction import redact_text
from gputui.store.rows import insert, records

# A runner that is silent for so much longer than its poll means an unknown state.
UNKNOWN_AFTER_SECONDS = 60.0
PlacementState = Literal["submitting", "pending", "configuring", "running", "suspended", "ending", "requeued", "ended"]
_MAX_TEXT = 300  # a scheduler's message may be the output of a failed command


class PlacementView(Struct, frozen=True):
    """Where a target runs an attempt, and what became of it there. Times are UTC unix seconds.

    Attributes:
        job: The target's id of the job, None before it has one.
        reason: The target's message about the state.
        expected_start: As the target estimates it.
        limit_at: When the target will end the attempt.
        restarts: How often the job began again.
        limit_restarts: How many of the ``restarts`` were at its time limit.
        gpus: How many were asked for, on all nodes together.
        queued_seconds: How long the job waited.
        ran_seconds: How long the job ran.
        contact_at: When the last successful contact began: what the attempt wrote until then is here.
        poll_seconds: The time between two contacts.
        problem: Why the last contact failed, None if it did not.
    """

    state: PlacementState
    job: str | None = None
    reason: str | None = None
    expected_start: float | None = None
    nodes: tuple[str, ...] = ()
    limit_at: float | None = None
    restarts: int = 0
    limit_restarts: int = 0
    gpus: int | None = None
    queued_seconds: float = 0.0
    ran_seconds: float = 0.0
    contact_at: float | None = None
    poll_seconds: float = 0.0
    problem: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlacementView:
        """Parse placement.json. Raises ValueError if it is malformed."""
        try:
            placement = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        texts = {name: _redacted(getattr(placement, name)) for name in ("job", "reason", "problem")}
        return replace(placement, **texts, nodes=tuple(node[:_MAX_TEXT] for node in placement.nodes))

    @property
    def is_waiting(self) -> bool:
        """True if its job was handed over, and does not run."""
        return self.state in ("pending", "requeued", "suspended")

    def is_seen_running(self, now: float) -> bool:
        """Return whether a recent contact says that the attempt runs."""
        if self.state != "running" or self.problem is not None or self.contact_at is None:
            return False
        return now - self.contact_at < self.poll_seconds + UNKNOWN_AFTER_SECONDS / 2

    def is_unknown(self, now: float) -> bool:
        """Return whether the target was reached before, but not recently."""
        if self.state == "ended" or self.contact_at is None:
            return False
        return now - self.contact_at >= self.poll_seconds + UNKNOWN_AFTER_SECONDS


def write(connection: sqlite3.Connection, run_id: str, attempt: int, placement: PlacementView) -> None:
    """Store a placement, replacing the former one. Raises sqlite3.Error."""
    values = {**asdict(placement), "nodes": json.dumps(placement.nodes)}
    insert(connection, "placements", "REPLACE", run_id=run_id, attempt=attempt, **values)


def read(connection: sqlite3.Connection, run_id: str, attempt: int) -> PlacementView | None:
    """The stored placement, or None. Raises sqlite3.Error."""
    query = "SELECT * FROM placements WHERE run_id = ? AND attempt = ?"
    return next(iter(records(connection, PlacementView, query, run_id, attempt)), None)


def of_run(connection: sqlite3.Connection, run_id: str) -> dict[int, PlacementView]:
    """The placements of a run's attempts, by their numbers. Raises sqlite3.Error."""
    numbers = [row[0] for row in connection.execute("SELECT attempt FROM placements WHERE run_id = ?", (run_id,))]
    placements = ((number, read(connection, run_id, number)) for number in numbers)
    return {number: placement for number, placement in placements if placement is not None}


def _redacted(text: str | None) -> str | None:
    if text:
        return redact_text(text)[:_MAX_TEXT]
    return None
