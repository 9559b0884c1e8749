"""Energy from a GPU's own counter, which only ever rises but for a new driver session and its own end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

# A counter of 32 bits in millijoules, as nvmlDeviceGetTotalEnergyConsumption counts, begins again here.
WRAP_JOULES = 2**32 / 1000
# No GPU of today draws as much; with less than this, a counter that fell has wrapped, and with more it was reset.
MOST_WATTS = 3000.0

Reading = tuple[float, float]
"""When the counter was read (UTC unix seconds), and what it stood at in joules."""


def consumed_joules(earlier: Reading, later: Reading) -> float:
    """Between two readings of one counter. Where the driver was loaded anew in between, the counter began at 0, and
    what it stands at is the least that was consumed."""
    (began, before), (ended, after) = earlier, later
    if after >= before:
        return after - before
    wrapped = after + WRAP_JOULES - before
    if 0 <= wrapped <= MOST_WATTS * max(1.0, ended - began):
        return wrapped
    return after


def energy_between(readings: Iterable[Reading], begin: float, end: float, longest_seconds: float) -> float | None:
    """Joules consumed from ``begin`` to ``end``; None where no two neighbouring readings tell of any of it.

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
