"""Attempts of runs, as they are or as they were at a past moment (``at``, UTC unix seconds; None is now).

Every function raises sqlite3.Error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.store import json_columns

if TYPE_CHECKING:
    import sqlite3

Json = Any


class Attempt(Struct, frozen=True):
    """One attempt of a run: its inputs and its end. ``executor`` has the fields of its executor's
    `runs.identity.ProcessIdentity`, None until that is known."""

    run_id: str
    number: int
    state: str
    params: Mapping[str, Json]
    gpus: tuple[str, ...]
    launch: Mapping[str, Json]
    created_at: float
    started_at: float | None = None
    first_step_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    exit: Mapping[str, Json] | None = None
    resumed_from: str | None = None
    resumed_step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    stop_requested: str | None = None
    executor: tuple[int, int, str] | None = None


_ATTEMPTS = (
    "SELECT run_id, number, state, params, gpus, launch, created_at, started_at, first_step_at, ended_at, "
    "exit_code, exit_signal, exit, resumed_from, resumed_step, first_step, last_step, stop_requested, "
    "shim_pid, shim_start_ticks, boot_id FROM attempts"
)


def read_attempts(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> list[Attempt]:
    """The attempts of a run in order; at a past time each without later changes."""
    attempts = [_attempt(row) for row in connection.execute(f"{_ATTEMPTS} WHERE run_id = ? ORDER BY number", (run_id,))]
    return attempts if at is None else [attempt_at(attempt, at) for attempt in attempts if attempt.created_at <= at]


def get_attempt(connection: sqlite3.Connection, run_id: str, number: int) -> Attempt | None:
    row = connection.execute(f"{_ATTEMPTS} WHERE run_id = ? AND number = ?", (run_id, number)).fetchone()
    return None if row is None else _attempt(row)


def newest_attempt(connection: sqlite3.Connection, run_id: str, at: float) -> Attempt | None:
    """The newest attempt at a time (UTC unix seconds), in its current state."""
    row = connection.execute(
        f"{_ATTEMPTS} WHERE run_id = ? AND created_at <= ? ORDER BY number DESC LIMIT 1", (run_id, at)
    ).fetchone()
    return None if row is None else _attempt(row)


class FellowStay(Struct, frozen=True):
    """An attempt of another run on the same GPU, from ``begin`` to ``end``, UTC unix seconds; None is still there."""

    run_id: str
    begin: float
    end: float | None


def fellows(connection: sqlite3.Connection, run_id: str, number: int) -> list[FellowStay]:
    """The trials of its study with which an attempt shared its GPU at any time, first to last."""
    rows = connection.execute(
        "SELECT b.run_id, b.started_at, b.ended_at FROM attempts AS a JOIN runs AS own USING (run_id) "
        "JOIN runs AS other ON other.study_id = own.study_id AND other.run_id != own.run_id "
        "JOIN attempts AS b ON b.run_id = other.run_id AND b.gpus = a.gpus "
        "WHERE a.run_id = ? AND a.number = ? AND a.gpus != '[]' "
        "AND iif(json_valid(own.spec), own.spec ->> '$.trials_per_gpu', 1) > 1 "
        "AND b.started_at < coalesce(a.ended_at, 9e999) AND coalesce(b.ended_at, 9e999) > a.started_at "
        "ORDER BY b.started_at, b.run_id",
        (run_id, number),
    )
    return [FellowStay(*row) for row in rows]


def _attempt(row: Any) -> Attempt:
    exit_report = json_columns.optional_mapping(row[12])
    values = [
        *row[:3],
        json_columns.mapping(row[3]),
        tuple(json_columns.items(row[4])),
        json_columns.mapping(row[5]),
        *row[6:12],
        exit_report,
        *row[13:18],
        None if row[18] is None else tuple(row[18:]),
    ]
    return Attempt(*values)


def ended_seconds(attempts: Iterable[Attempt]) -> float | None:
    """Total duration of the ended attempts; None if none has ended."""
    ended = [
        max(0.0, attempt.ended_at - (attempt.ended_at if attempt.started_at is None else attempt.started_at))
        for attempt in attempts
        if attempt.ended_at is not None
    ]
    return sum(ended) if ended else None


def attempt_at(attempt: Attempt, at: float) -> Attempt:
    """The attempt as it was at a time."""
    started = attempt.started_at if is_by(attempt.started_at, at) else None
    # A run that was rebuilt from its folder has no time of its first step.
    stepped = is_by(attempt.first_step_at if attempt.first_step_at is not None else attempt.started_at, at)
    known = replace(
        attempt,
        started_at=started,
        first_step_at=attempt.first_step_at if stepped else None,
        first_step=attempt.first_step if stepped else None,
    )
    if is_by(attempt.ended_at, at):
        return known
    return replace(
        known,
        state="starting" if started is None else "running",
        ended_at=None,
        exit_code=None,
        exit_signal=None,
        exit=None,
        last_step=None,
        stop_requested=None,
    )


def is_by(time: float | None, at: float) -> bool:
    """Whether something happened, and not after ``at``."""
    return time is not None and time <= at
