"""What runs took of the machine: GPU-hours, and energy by the GPUs' own counters."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """What one attempt took so far. ``seconds`` and ``gpu_hours`` are None while it has not begun; ``energy_joules`` is
    the sum over those ``measured_gpus`` of its ``gpu_count`` GPUs whose counter was readable, None if none was.
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
        "SELECT a.number, json_array_length(a.gpus), a.started_at, a.ended_at, sum(e.energy_joules), "
        "count(e.energy_joules), coalesce(sum(e.settled), 0) FROM attempts AS a "
        "LEFT JOIN attempt_energy AS e ON e.run_id = a.run_id AND e.attempt = a.number "
        "WHERE a.run_id = ? GROUP BY a.number ORDER BY a.number",
        (run_id,),
    )
    return total([_attempt_cost(now, *row) for row in rows])


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
    hours = None if seconds is None else gpu_count * seconds / SECONDS_PER_HOUR
    is_final = ended_at is not None and settled >= gpu_count
    return AttemptCost(number, gpu_count, seconds, hours, joules, measured, is_final)
