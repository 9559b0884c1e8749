"""What runs took of the machine: GPU-hours, and energy by the GPUs' own counters."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gputui.store.attempts import fellows

CounterReading = tuple[float, float]
"""When an energy counter was read (UTC unix seconds), and its value in joules."""


def consumed_joules(earlier: CounterReading, later: CounterReading) -> float:
    """Return what was consumed between two readings of one counter. It counts 64 bits of millijoules from the loading
    of the driver (nvmlDeviceGetTotalEnergyConsumption): a counter that fell has restarted, and its value is the least
    that was consumed."""
    (_, before), (_, after) = earlier, later
    return after - before if after >= before else after


def energy_between(
    readings: Iterable[CounterReading], begin: float, end: float, longest_seconds: float
) -> float | None:
    """Joules consumed from ``begin`` to ``end``; None if no two neighbouring readings overlap that time.

    Readings are in the order of their times. Between two readings the GPU is taken to draw evenly, and two more than
    ``longest_seconds`` apart say nothing of what lay between.
    """
    total: float | None = None
    for earlier, later in itertools.pairwise(readings):
        apart = later[0] - earlier[0]
        inside = min(later[0], end) - max(earlier[0], begin)
        if 0 < apart <= longest_seconds and inside > 0:
            total = (total or 0.0) + consumed_joules(earlier, later) * inside / apart
    return total


def own_seconds(begin: float, end: float, others: Sequence[tuple[float, float]]) -> float:
    """The part of the time from ``begin`` to ``end`` that counts as one run's own, where ``others`` had the same GPU
    from their begin to their end: of what several share, each has its equal part."""
    return sum(seconds / (1 + count) for seconds, count in _shared_parts(begin, end, others))


def alone_seconds(begin: float, end: float, others: Sequence[tuple[float, float]]) -> float:
    """The part of that time in which none of the ``others`` was there."""
    return sum(seconds for seconds, count in _shared_parts(begin, end, others) if not count)


def _shared_parts(begin: float, end: float, others: Sequence[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    """The time in parts in which nobody came or went: how long, and how many others were there."""
    if end <= begin:
        # The clock was set back.
        return
    inside = [(max(begin, since), min(end, until)) for since, until in others if since < end and until > begin]
    for earlier, later in itertools.pairwise(sorted({begin, end, *itertools.chain.from_iterable(inside)})):
        yield later - earlier, sum(since <= earlier and later <= until for since, until in inside)


SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """What one attempt took so far: of a GPU that it shared, its equal part of the time and of the energy. ``seconds``
    and ``gpu_hours`` are None while it has not begun; ``energy_joules`` is the sum over those ``measured_gpus`` of its
    ``gpu_count`` GPUs whose counter was readable, None if none was.
    ``is_final``: the attempt is over and its energy read to the end."""

    attempt: int
    gpu_count: int
    seconds: float | None
    gpu_hours: float | None
    energy_joules: float | None
    measured_gpus: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class RunCost:
    """The sum over a run's attempts. ``energy_is_partial``: a GPU of an attempt reported nothing: it is at least so
    much. A run without GPUs costs 0 GPU-hours, and its energy is None."""

    gpu_hours: float | None
    energy_joules: float | None
    energy_is_partial: bool
    attempts: tuple[AttemptCost, ...]

    @property
    def energy_kwh(self) -> float | None:
        return None if self.energy_joules is None else self.energy_joules / JOULES_PER_KWH


def run_cost(connection: sqlite3.Connection, run_id: str, now: float) -> RunCost:
    """What a run took up to ``now`` (UTC unix seconds). Raises sqlite3.Error."""
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
    """Sum attempts to the cost of a run. Attempts that have not started count nothing."""
    begun = [one for one in attempts if one.gpu_hours is not None]
    hours = [one.gpu_hours for one in begun if one.gpu_hours is not None]
    energies = [one.energy_joules for one in begun if one.energy_joules is not None]
    return RunCost(
        sum(hours) if hours else None,
        sum(energies) if energies else None,
        any(one.measured_gpus < one.gpu_count for one in begun),
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
