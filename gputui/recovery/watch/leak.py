"""Detection of host memory leaks: steady growth towards the machine's limit. Pure."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from msgspec import Struct

# In less time, filling caches and the first epoch look like a leak.
LEAST_SECONDS = 900.0
LEAST_SAMPLES = 24
LEAST_GROWTH_BYTES = 256 << 20
# Reported if the memory would be full within a night, and within this share of the time that it was seen to grow: a
# cache that may take half of the remaining memory grows as steadily, but stops earlier.
HORIZON_SECONDS = 12 * 3600.0
HORIZON_SHARE = 0.8
# The limit is near if only this share of the reachable memory is left, or this much time.
NEAR_SHARE = 0.10
NEAR_SECONDS = 300.0
# A leak that began late is searched in the newest half, quarter … of the samples, down to this duration.
LEAST_RECENT_SECONDS = 3600.0
# Memory must grow from each part of the time to the next by at least this share of even growth: memory that levels off,
# or goes up and down, is no leak.
PARTS = 8
EVEN_SHARE = 0.5


class MemorySample(Struct, frozen=True):
    """Private memory of the run's processes and available memory of the host at ``at`` (monotonic seconds)."""

    at: float
    held_bytes: int
    available_bytes: int


class Leak(Struct, frozen=True):
    """Steady growth, and the time to the limit. ``is_near``: the run should save now."""

    bytes_per_second: float
    full_in_seconds: float
    is_near: bool


_held = operator.attrgetter("held_bytes")


def find_leak(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak in an attempt's samples, which are in order; None if there is no relevant one."""
    while True:
        leak = _steady(samples)
        half = samples[len(samples) // 2 :]
        if leak is not None or not half or half[-1].at - half[0].at < LEAST_RECENT_SECONDS:
            return leak
        samples = half


def _steady(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak over all samples. The minima of the parts are compared, so that memory that is freed now and then, such
    as caches, does not count."""
    if len(samples) < LEAST_SAMPLES or samples[-1].at - samples[0].at < LEAST_SECONDS:
        return None
    bounds = [len(samples) * part // PARTS for part in range(PARTS + 1)]

    def floor(part: int) -> MemorySample:
        return min(samples[bounds[part] : bounds[part + 1]], key=_held)

    first, last = floor(0), floor(PARTS - 1)
    growth = last.held_bytes - first.held_bytes
    if growth < LEAST_GROWTH_BYTES:
        # The common case ends early.
        return None
    floors = [first, *map(floor, range(1, PARTS - 1)), last]
    if any(
        later.held_bytes - earlier.held_bytes < EVEN_SHARE * growth / (PARTS - 1)
        for earlier, later in itertools.pairwise(floors)
    ):
        return None
    rate = growth / (last.at - first.at)
    newest = samples[-1]
    full_in = newest.available_bytes / rate
    reachable = newest.held_bytes + newest.available_bytes
    is_near = full_in <= NEAR_SECONDS or newest.available_bytes <= NEAR_SHARE * reachable
    if full_in > (HORIZON_SECONDS if is_near else min(HORIZON_SECONDS, HORIZON_SHARE * (newest.at - first.at))):
        return None
    return Leak(rate, full_in, is_near)
