"""Extent, size and retention of the recorded history, for `gputui agent status`."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.store.agent import Retention, age_words
from gputui.store.database import room
from gputui.store.json_shapes import iso
from gputui.store.rollups import bounds, first_sample


class RecordStatus(Struct, frozen=True):
    """Times are UTC unix seconds; None if nothing is recorded. ``problem`` is why record.yaml cannot be used."""

    retention: Retention
    problem: str | None
    began_at: float | None = None
    raw_since: float | None = None
    file_bytes: int | None = None
    used_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "began_at": iso(self.began_at),
            "raw_since": iso(self.raw_since),
            "file_bytes": self.file_bytes,
            "used_bytes": self.used_bytes,
            "retention": asdict(self.retention),
            "problem": self.problem,
        }

    def lines(self) -> list[str]:
        """The status as text."""
        kept = self.retention
        limit = "any size" if kept.size_bytes is None else f"at most {_megabytes(kept.size_bytes)}"
        found = [] if self.problem is None else [f"record.yaml is not used: {self.problem}"]
        if self.began_at is not None and self.used_bytes is not None:
            day = datetime.fromtimestamp(self.began_at, UTC).strftime("%Y-%m-%d")
            found.append(f"record      since {day}, {_megabytes(self.used_bytes)} of {limit}")
        found.append(
            f"kept        samples {age_words(kept.raw_seconds)}, minutes {age_words(kept.minutes_seconds)}, "
            f"hours {age_words(kept.hours_seconds)}, events and alerts {age_words(kept.events_seconds)}"
        )
        return found


def record_status(connection: sqlite3.Connection | None, retention: Retention, problem: str | None) -> RecordStatus:
    """The status; ``connection`` is None if nothing is recorded. Raises sqlite3.Error."""
    if connection is None:
        return RecordStatus(retention, problem)
    began = first_sample(connection)
    taken = room(connection)
    raw_since = None if began is None else max(began, bounds(connection).raw_since)
    return RecordStatus(retention, problem, began, raw_since, taken.file_bytes, taken.used_bytes)


def _megabytes(count: int) -> str:
    if count < 10 << 20:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / 2**20:.0f} MiB" if count < 1 << 30 else f"{count / 2**30:.1f} GiB"
