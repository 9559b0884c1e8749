"""Attempts of runs, now or at a past moment (``at``, UTC unix seconds; None is now), and what they
cost: GPU-hours, and energy from the GPUs' counters. Every reader raises sqlite3.Error.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import sum_of_known
from gputui.store import placements
from gputui.store.placements import PlacementView
from gputui.store.rows import named_rows, records

Json = Any

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


class FellowStay(Struct, frozen=True):
    """An attempt of another run on the same GPU from ``begin`` to ``end`` (None: still there). ``weight`` is the part
    of the GPU that it asked for, in units of what the run asked for that it shared with."""

    run_id: str
    begin: float
    end: float | None
    weight: float = 1.0


class Attempt(Struct, frozen=True):
    """One attempt of a run: its inputs and its end. Times are UTC unix seconds, None before their event.

    Attributes:
        gpus: UUIDs; none on a target.
        launch: How its command was built.
        exited_at: When its command ended.
        ended_at: When what it left was examined, which is the same time then.
        exit: The record of its end, None without one.
        resumed_from: The checkpoint that it began from, None for a start from the beginning.
        resumed_step: The step of ``resumed_from``, None where that is unknown too.
        first_step: The first step in its metrics.
        last_step: The highest step in its metrics.
        stop_requested: Why its end was asked for, None if nobody did.
        executor: The fields of its process's `runs.identity.ProcessIdentity`, None until that is known.
        placement: Where a target runs it, as it was reported last; None on this machine.
        fellows: Attempts with which it shared its GPU.
    """

    run_id: str
    number: int
    state: str
    params: Mapping[str, Json]
    gpus: tuple[str, ...]
    launch: Mapping[str, Json]
    created_at: float
    started_at: float | None = None
    first_step_at: float | None = None
    exited_at: float | None = None
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
    placement: PlacementView | None = None
    fellows: tuple[FellowStay, ...] = ()

    @property
    def gpu_count(self) -> int | None:
        """The number of its GPUs, on a target those that it asked for; None if that is unknown."""
        if self.placement is None:
            return len(self.gpus)
        return self.placement.gpus

    @property
    def began_at(self) -> float:
        """The time at which its command began, else that at which it was created (UTC unix seconds)."""
        if self.started_at is None:
            return self.created_at
        return self.started_at

    @property
    def command_ended_at(self) -> float | None:
        """The time at which its command ended, where unknown that by which it was examined (UTC unix seconds)."""
        if self.exited_at is None:
            return self.ended_at
        return self.exited_at

    def ran_seconds(self, now: float) -> float | None:
        """How long it has run until ``now`` (UTC unix seconds), without the time in a target's queue;
        None before it began. Once its record of the end is stored, by a monotonic clock."""
        if self.started_at is None:
            return None
        if self.placement is not None:
            return self.placement.ran_seconds
        measured = (self.exit or {}).get("ran_seconds")
        if isinstance(measured, float):
            return measured
        end = self.command_ended_at
        if end is None:
            end = now
        return max(0.0, end - self.started_at)

    def gpu_seconds(self, begin: float, end: float) -> float | None:
        """What a stretch of it (UTC unix seconds) counts: its part of the time of each GPU; None if their number is
        unknown."""
        if self.gpu_count is None:
            return None
        return self.gpu_count * own_seconds(begin, end, self.fellows)


def read_attempts(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> list[Attempt]:
    """The attempts of a run in order; at a past time each without later changes."""
    attempts = _read(connection, "run_id = ? ORDER BY number", run_id)
    if at is None:
        return attempts
    return [attempt_at(attempt, at) for attempt in attempts if attempt.created_at <= at]


def get_attempt(connection: sqlite3.Connection, run_id: str, number: int) -> Attempt | None:
    return next(iter(_read(connection, "run_id = ? AND number = ?", run_id, number)), None)


def _read(connection: sqlite3.Connection, condition: str, *values: object) -> list[Attempt]:
    executor = "iif(shim_pid NOTNULL, json_array(shim_pid, shim_start_ticks, boot_id), NULL) AS executor"
    query = f"SELECT *, {executor} FROM attempts WHERE {condition}"  # noqa: S608 - fixed conditions
    attempts = records(connection, Attempt, query, *values)
    if not attempts:
        return []
    run_id = attempts[0].run_id
    if placed := placements.of_run(connection, run_id):
        return [replace(attempt, placement=placed.get(attempt.number)) for attempt in attempts]
    if _share_of(connection, run_id) is None:
        return attempts
    return [replace(row, fellows=tuple(fellows(connection, run_id, row.number))) for row in attempts]


def _share_of(connection: sqlite3.Connection, run_id: str) -> tuple[str | None, float] | None:
    """The study of a run, and the part of a GPU that it asked for; None if it has whole ones."""
    query = "SELECT study_id, iif(json_valid(spec), spec ->> '$.gpus.share', 1.0) AS share FROM runs WHERE run_id = ?"
    row: tuple[str | None, float] | None = connection.execute(f"{query} AND share < 1", (run_id,)).fetchone()
    return row


def cuts_of(attempts: Sequence[Attempt]) -> dict[int, float]:
    """For each attempt, the first step that a later one did again; infinite if none."""
    cuts: dict[int, float] = {}
    lowest = math.inf
    for attempt in sorted(attempts, key=lambda attempt: -attempt.number):
        cuts[attempt.number] = lowest
        if attempt.first_step is not None:
            lowest = min(lowest, attempt.first_step)
    return cuts


def seconds_since_asked(connection: sqlite3.Connection, run_id: str, now: float) -> float:
    """How long a run has trained until ``now`` since a person last started it. Raises sqlite3.Error."""
    (asked_at,) = connection.execute(
        "SELECT max(at) FROM transitions WHERE run_id = ? AND to_state = 'queued' AND actor != 'agent'", (run_id,)
    ).fetchone()
    attempts = [attempt for attempt in read_attempts(connection, run_id) if attempt.created_at >= (asked_at or 0.0)]
    return sum(attempt.ran_seconds(now) or 0.0 for attempt in attempts)


def fellows(connection: sqlite3.Connection, run_id: str, number: int) -> list[FellowStay]:
    """The runs with which an attempt shared its GPU at any time, first to last."""
    if (study_and_share := _share_of(connection, run_id)) is None:
        return []
    study_id, share = study_and_share
    # Written out, because IS would not use the index of trials.
    others = "other.study_id IS NULL"
    if study_id is not None:
        others = "other.study_id = :study"
    rows = connection.execute(
        "SELECT b.run_id, b.started_at, b.ended_at, "  # noqa: S608 - one of two fixed texts
        "coalesce(iif(json_valid(other.spec), other.spec ->> '$.gpus.share', 1.0), 1.0) / :share FROM attempts AS a "
        f"JOIN runs AS other ON {others} AND other.run_id != a.run_id "
        "AND coalesce(other.ended_at, 9e999) > a.started_at "
        "JOIN attempts AS b ON b.run_id = other.run_id AND b.gpus = a.gpus "
        "WHERE a.run_id = :run AND a.number = :number AND a.gpus != '[]' "
        "AND b.started_at < coalesce(a.ended_at, 9e999) AND coalesce(b.ended_at, 9e999) > a.started_at "
        "ORDER BY b.started_at, b.run_id",
        {"run": run_id, "number": number, "study": study_id, "share": share},
    )
    return [FellowStay(*row) for row in rows]


def ended_seconds(attempts: Iterable[Attempt]) -> float | None:
    """Total duration of the ended attempts; None if none has ended."""
    ended = [attempt.ran_seconds(attempt.ended_at) or 0.0 for attempt in attempts if attempt.ended_at is not None]
    if ended:
        return sum(ended)
    return None


def attempt_at(attempt: Attempt, at: float) -> Attempt:
    """The attempt as it was at a time."""
    changes: dict[str, Any] = {}
    first_step_at = attempt.first_step_at
    state = "running"
    if first_step_at is None:
        # A run that was rebuilt from its folder has no time of its first step.
        first_step_at = attempt.started_at
    if not is_by(first_step_at, at):
        changes |= {"first_step_at": None, "first_step": None}
    if not is_by(attempt.started_at, at):
        changes["started_at"] = None
        state = "starting"
    if not is_by(attempt.ended_at, at):
        later = ("exited_at", "ended_at", "exit_code", "exit_signal", "exit", "last_step", "stop_requested")
        changes |= {**dict.fromkeys(later), "state": state}
    return replace(attempt, **changes)


def is_by(time: float | None, at: float) -> bool:
    """Return whether something happened, and not after ``at``."""
    return time is not None and time <= at


CounterReading = tuple[float, float]
"""Time (UTC unix seconds) and value (joules) of an energy counter."""


def consumed_joules(earlier: CounterReading, later: CounterReading) -> float:
    """Energy between two readings of one counter; after a restart a lower bound."""
    _, before = earlier
    _, after = later
    if after >= before:
        return after - before
    return after


def energy_between(
    readings: Iterable[CounterReading], begin: float, end: float, longest_seconds: float
) -> float | None:
    """The joules consumed between two times; None if no two neighbouring readings overlap them.

    Power is constant between two readings.

    Args:
        longest_seconds: Readings that are further apart are ignored.
    """
    joules: float | None = None
    for earlier, later in itertools.pairwise(readings):
        apart = later[0] - earlier[0]
        overlap = min(later[0], end) - max(earlier[0], begin)
        if 0 < apart <= longest_seconds and overlap > 0:
            joules = (joules or 0.0) + consumed_joules(earlier, later) * overlap / apart
    return joules


def own_seconds(begin: float, end: float, others: Sequence[FellowStay]) -> float:
    """A run's part of a GPU's time: what is used by several is divided by what they asked for."""
    return sum(seconds / (1 + weight) for seconds, weight in _shared_parts(begin, end, others))


def alone_seconds(begin: float, end: float, others: Sequence[FellowStay]) -> float:
    """The part of that time in which none of the ``others`` used the GPU."""
    return sum(seconds for seconds, weight in _shared_parts(begin, end, others) if not weight)


def _shared_parts(begin: float, end: float, others: Sequence[FellowStay]) -> Iterator[tuple[float, float]]:
    """Parts of the time with a constant set of users: duration, and weight of the others together."""
    if end <= begin:
        return  # the clock was set back
    overlaps = []
    for stay in others:
        since = max(begin, stay.begin)
        end_of_stay = end
        if stay.end is not None:
            end_of_stay = min(end, stay.end)
        if since < end_of_stay:
            overlaps.append((since, end_of_stay, stay.weight))
    moments = {begin, end}.union(*(bounds for *bounds, _ in overlaps))
    for earlier, later in itertools.pairwise(sorted(moments)):
        weights = (weight for since, last, weight in overlaps if since <= earlier and later <= last)
        yield later - earlier, sum(weights)


class AttemptCost(Struct, frozen=True):
    """The resources of one attempt so far, with its share of shared GPUs; None before it starts.

    Attributes:
        gpu_count: How many GPUs it has.
        measured_gpus: How many of its GPUs have a readable counter of energy.
        energy_joules: The sum over these counters.
        is_final: The attempt is over, and its energy is complete.
    """

    attempt: int
    gpu_count: int
    seconds: float | None
    gpu_hours: float | None
    energy_joules: float | None
    measured_gpus: int
    is_final: bool


class RunCost(Struct, frozen=True):
    """The sum over a run's attempts. ``energy_is_partial``: some GPU has no counter, so the energy
    is a lower bound. A run without GPUs costs 0 GPU-hours, and its energy is None."""

    gpu_hours: float | None
    energy_joules: float | None
    energy_is_partial: bool
    attempts: tuple[AttemptCost, ...]

    @property
    def energy_kwh(self) -> float | None:
        if self.energy_joules is None:
            return None
        return self.energy_joules / JOULES_PER_KWH


def run_cost(connection: sqlite3.Connection, run_id: str, now: float) -> RunCost:
    """The resources of a run up to ``now`` (UTC unix seconds)."""
    rows = named_rows(
        connection,
        "SELECT a.number, sum(e.energy_joules) AS joules, "
        "count(e.energy_joules) AS measured, coalesce(sum(e.settled), 0) AS settled FROM attempts AS a "
        "LEFT JOIN attempt_energy AS e ON e.run_id = a.run_id AND e.attempt = a.number "
        "WHERE a.run_id = ? GROUP BY a.number ORDER BY a.number",
        [run_id],
    )
    costs = []
    for attempt, row in zip(read_attempts(connection, run_id), rows, strict=True):
        begin = attempt.started_at
        seconds = attempt.ran_seconds(now)
        gpu_seconds = None
        if begin is not None and seconds is not None:
            gpu_seconds = attempt.gpu_seconds(begin, begin + seconds)
        hours = None
        if gpu_seconds is not None:
            hours = gpu_seconds / SECONDS_PER_HOUR
        # The energy of a target's GPUs is never known.
        is_settled = attempt.placement is not None or row["settled"] >= len(attempt.gpus)
        is_final = attempt.ended_at is not None and is_settled
        measured = (row["joules"], row["measured"], is_final)
        costs.append(AttemptCost(attempt.number, attempt.gpu_count or 0, seconds, hours, *measured))
    return total(costs)


def total(attempts: Sequence[AttemptCost]) -> RunCost:
    """The sum of attempts. Those that have not started do not count."""
    begun = [cost for cost in attempts if cost.gpu_hours is not None]
    return RunCost(
        sum_of_known(cost.gpu_hours for cost in begun),
        sum_of_known(cost.energy_joules for cost in begun),
        any(cost.measured_gpus < cost.gpu_count for cost in begun),
        tuple(attempts),
    )
