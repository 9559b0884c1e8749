"""The resources that runs used: GPU-hours, and energy from the GPUs' counters."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from gputui.store.attempts import fellows

CounterReading = tuple[float, float]
"""Time (UTC unix seconds) and value (joules) of an energy counter."""


def consumed_joules(earlier: CounterReading, later: CounterReading) -> float:
    """Energy between two readings of one counter, which starts when the driver is loaded
    (nvmlDeviceGetTotalEnergyConsumption). After a restart its value is a lower bound."""
    (_, before), (_, after) = earlier, later
    return after - before if after >= before else after


def energy_between(
    readings: Iterable[CounterReading], begin: float, end: float, longest_seconds: float
) -> float | None:
    """Joules consumed from ``begin`` to ``end``; None if no two neighbouring readings overlap that time.

    Readings are ordered by time. Power is assumed constant between two readings; pairs more than ``longest_seconds``
    apart are ignored.
    """
    total: float | None = None
    for earlier, later in itertools.pairwise(readings):
        apart = later[0] - earlier[0]
        overlap = min(later[0], end) - max(earlier[0], begin)
        if 0 < apart <= longest_seconds and overlap > 0:
            total = (total or 0.0) + consumed_joules(earlier, later) * overlap / apart
    return total


def own_seconds(begin: float, end: float, others: Sequence[tuple[float, float]]) -> float:
    """A run's share of a GPU's time from ``begin`` to ``end``: ``others`` used the GPU from their begin to their end,
    and shared time is divided equally."""
    return sum(seconds / (1 + count) for seconds, count in _shared_parts(begin, end, others))


def alone_seconds(begin: float, end: float, others: Sequence[tuple[float, float]]) -> float:
    """The part of that time in which none of the ``others`` used the GPU."""
    return sum(seconds for seconds, count in _shared_parts(begin, end, others) if not count)


def _shared_parts(begin: float, end: float, others: Sequence[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    """Parts of the time with a constant set of users: duration, and number of others."""
    if end <= begin:
        # The clock was set back.
        return
    overlaps = [(max(begin, since), min(end, until)) for since, until in others if since < end and until > begin]
    for earlier, later in itertools.pairwise(sorted({begin, end, *itertools.chain.from_iterable(overlaps)})):
        yield later - earlier, sum(since <= earlier and later <= until for since, until in overlaps)


SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


class AttemptCost(Struct, frozen=True):
    """The resources of one attempt so far, with its share of shared GPUs. ``seconds`` and ``gpu_hours`` are None before
    it starts. ``energy_joules`` is the sum over ``measured_gpus`` of its ``gpu_count`` GPUs, those with a readable
    counter; None if there is none. ``is_final``: the attempt is over, and its energy is complete."""

    attempt: int
    gpu_count: int
    seconds: float | None
    gpu_hours: float | None
    energy_joules: float | None
    measured_gpus: int
    is_final: bool


class RunCost(Struct, frozen=True):
    """The sum over a run's attempts. ``energy_is_partial``: some GPU has no counter, so the energy is a lower bound. A
    run without GPUs costs 0 GPU-hours, and its energy is None."""

    gpu_hours: float | None
    energy_joules: float | None
    energy_is_partial: bool
    attempts: tuple[AttemptCost, ...]

    @property
    def energy_kwh(self) -> float | None:
        return None if self.energy_joules is None else self.energy_joules / JOULES_PER_KWH


def run_cost(connection: sqlite3.Connection, run_id: str, now: float) -> RunCost:
    """The resources of a run up to ``now`` (UTC unix seconds). Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT a.number, iif(json_valid(a.gpus), json_array_length(a.gpus), 0), "
        "a.started_at, a.ended_at, sum(e.energy_joules), "
        "count(e.energy_joules), coalesce(sum(e.settled), 0) FROM attempts AS a "
        "LEFT JOIN attempt_energy AS e ON e.run_id = a.run_id AND e.attempt = a.number "
        "WHERE a.run_id = ? GROUP BY a.number ORDER BY a.number",
        (run_id,),
    )
    return total([_attempt_cost(connection, run_id, now, *row) for row in rows])


def total(attempts: Sequence[AttemptCost]) -> RunCost:
    """The sum of attempts. Those that have not started do not count."""
    begun = [cost for cost in attempts if cost.gpu_hours is not None]
    hours = [cost.gpu_hours for cost in begun if cost.gpu_hours is not None]
    energies = [cost.energy_joules for cost in begun if cost.energy_joules is not None]
    return RunCost(
        sum(hours) if hours else None,
        sum(energies) if energies else None,
        any(cost.measured_gpus < cost.gpu_count for cost in begun),
        tuple(attempts),
    )


def _attempt_cost(
    connection: sqlite3.Connection,
    run_id: str,
    now: float,
    number: int,
    gpu_count: int,
    started_at: float | None,
    ended_at: float | None,
    joules: float | None,
    measured: int,
    settled: int,
) -> AttemptCost:
    seconds = None if started_at is None else max(0.0, (now if ended_at is None else ended_at) - started_at)
    hours = None
    if started_at is not None and seconds is not None:
        others = [(stay.begin, now if stay.end is None else stay.end) for stay in fellows(connection, run_id, number)]
        hours = gpu_count * own_seconds(started_at, started_at + seconds, others) / SECONDS_PER_HOUR
    is_final = ended_at is not None and settled >= gpu_count
    return AttemptCost(number, gpu_count, seconds, hours, joules, measured, is_final)
