"""Placements of remote attempts: one row per attempt, as its executor last reported in
placement.json of the attempt's folder (docs/attempts.md)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.redaction import redact_text
from gputui.store.database import insert, records

# A courier reports every few seconds; silence beyond this means an unknown state.
UNKNOWN_AFTER_SECONDS = 60.0
STATES = ("submitting", "pending", "configuring", "running", "ending", "requeued", "ended")
_MAX_TEXT = 300


class PlacementView(Struct, frozen=True):
    """``state`` is one of STATES, ``reason`` the target's message about it, ``problem`` why the
    last contact failed. ``limit_at`` is when the target will end the attempt; UTC unix seconds."""

    job: str | None
    state: str
    reason: str | None
    expected_start: float | None
    nodes: tuple[str, ...]
    limit_at: float | None
    restarts: int
    contact_at: float | None
    problem: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlacementView:
        """Parse placement.json; malformed values are unknown. Raises ValueError without a state."""
        if data.get("state") not in STATES:
            raise ValueError(f"no state of an attempt: {data.get('state')!r}")
        nodes, restarts = data.get("nodes"), data.get("restarts")
        values: dict[str, Any] = {name: _text(data.get(name)) for name in ("job", "reason", "problem")}
        values |= {name: _time(data.get(name)) for name in ("expected_start", "limit_at", "contact_at")}
        values["nodes"] = tuple(str(node)[:_MAX_TEXT] for node in nodes) if isinstance(nodes, list) else ()
        return cls(state=data["state"], restarts=restarts if isinstance(restarts, int) else 0, **values)

    def is_seen_running(self, now: float) -> bool:
        """Whether a recent contact says that the attempt runs."""
        is_fresh = self.contact_at is not None and now - self.contact_at < UNKNOWN_AFTER_SECONDS / 2
        return self.state == "running" and self.problem is None and is_fresh

    def is_unknown(self, now: float) -> bool:
        """Whether the target was reached before, but not recently."""
        if self.state == "ended" or self.contact_at is None:
            return False
        return now - self.contact_at >= UNKNOWN_AFTER_SECONDS


def write(connection: sqlite3.Connection, run_id: str, attempt: int, placement: PlacementView) -> None:
    """Store a placement, replacing the former one. Raises sqlite3.Error."""
    values = {**asdict(placement), "nodes": json.dumps(placement.nodes)}
    insert(connection, "placements", "REPLACE", run_id=run_id, attempt=attempt, **values)


def read(connection: sqlite3.Connection, run_id: str, attempt: int) -> PlacementView | None:
    """The stored placement, or None. Raises sqlite3.Error."""
    query = "SELECT * FROM placements WHERE run_id = ? AND attempt = ?"
    return next(iter(records(connection, PlacementView, query, run_id, attempt)), None)


def _text(value: object) -> str | None:
    return redact_text(str(value))[:_MAX_TEXT] if value not in (None, "") else None


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
