"""Expiry of old alerts, events, driver events and commands. Events of an existing run are deleted with the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from gputui.runs.repository import transaction

# Rows of one slice, which takes a few milliseconds.
ROWS_AT_ONCE = 500
EVERY_SECONDS = 3600.0

# Table, key, and the condition of expired rows; ?1 is the oldest time to keep.
_OLD = (
    ("alerts", "alert_id", "raised_at < ?1 AND cleared_at < ?1"),
    ("events", "event_id", "at < ?1 AND (run_id IS NULL OR run_id NOT IN (SELECT run_id FROM runs))"),
    ("gpu_events", "event_id", "at < ?1"),
    ("commands", "command_id", "answered_at < ?1"),
)


@dataclass(slots=True)
class EventExpiry:
    """Deletes expired rows once an hour, in slices. ``clock`` returns monotonic seconds."""

    connection: sqlite3.Connection
    clock: Callable[[], float]
    due: float = float("-inf")
    table: int = 0

    def turn(self, age_seconds: float | None, now: float, deadline: float) -> None:
        """Delete at least one slice of due rows, and more until ``deadline`` (monotonic). ``now`` is UTC unix seconds;
        ``age_seconds`` None keeps everything. Raises sqlite3.Error."""
        if age_seconds is None or self.clock() < self.due:
            return
        while self.table < len(_OLD):
            table, key, condition = _OLD[self.table]
            with transaction(self.connection) as connection:
                deleted = connection.execute(
                    f"DELETE FROM {table} WHERE {key} IN "  # noqa: S608 - names of our own
                    f"(SELECT {key} FROM {table} WHERE {condition} LIMIT {ROWS_AT_ONCE})",
                    (now - age_seconds,),
                ).rowcount
            if deleted < ROWS_AT_ONCE:
                self.table += 1
            if self.clock() >= deadline:
                return
        self.table, self.due = 0, self.clock() + EVERY_SECONDS
