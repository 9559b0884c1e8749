"""Growing memory: steady growth, and leaks that will fill the host. Pure.

The limits were tuned until 10 000 simulated healthy hours gave no alarm: ``python -m
benchmarks.recovery``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from msgspec import Struct

# In less time, filling caches and the first epoch look like a leak.
LEAK_SECONDS = 900.0
LEAK_SAMPLES = 24
LEAK_BYTES = 256 << 20  # caches of libraries grow by less, and then stop
# Reported if the memory would be full within a night, and within this share of the time that it was
# seen to grow: a cache that may take half of the remaining memory grows as steadily, but stops
# earlier.
HORIZON_SECONDS = 12 * 3600.0
HORIZON_SHARE = 0.8
# The limit is near if only this share of the reachable memory is left, or this much time.
NEAR_SHARE = 0.10
NEAR_SECONDS = 300.0  # a person can still act
# A leak that began late is searched in the newest half, quarter … of the samples, down to this.
LEAST_RECENT_SECONDS = 3600.0
# Memory must grow from each part of the time to the next by at least this share of even growth:
# memory that levels off, or goes up and down, is no leak.
LEAK_PARTS = 8
EVEN_SHARE = 0.5  # a leak grows in each part, a cache in the first


class MemorySample(Struct, frozen=True):
    """Memory held (by a run, or by all) and available on the host, at ``at`` seconds."""

    at: float
    held_bytes: int
    available_bytes: int


class Leak(Struct, frozen=True):
    """Steady growth, and the time to the limit. ``is_near``: the run should save now."""

    bytes_per_second: float
    full_in_seconds: float
    is_near: bool


def steady_growth(samples: Sequence[MemorySample], parts: int, least_bytes: int = 0) -> tuple[float, float] | None:
    """The growth of memory if it goes on in each part of the time.

    The minima of the parts are compared, so that memory that is freed now and then, such as caches,
    does not count.

    Args:
        parts: so many.
        least_bytes: growth by less is none.

    Returns:
        Bytes per second, and the time of the sample since which it grows; None if it does not.
    """
    bounds = [len(samples) * part // parts for part in range(parts + 1)]

    def floor(part: int) -> MemorySample:
        return min(samples[bounds[part] : bounds[part + 1]], key=lambda sample: sample.held_bytes)

    first = floor(0)
    last = floor(parts - 1)
    growth = last.held_bytes - first.held_bytes
    if growth <= 0 or growth < least_bytes:
        return None  # the common case ends early
    floors = [first, *map(floor, range(1, parts - 1)), last]
    least = EVEN_SHARE * growth / (parts - 1)
    steps = (later.held_bytes - earlier.held_bytes for earlier, later in itertools.pairwise(floors))
    if any(step < least for step in steps):
        return None
    return growth / (last.at - first.at), first.at


def find_leak(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak in an attempt's samples, which are in order; None if there is no relevant one."""
    while len(samples) >= LEAK_SAMPLES and samples[-1].at - samples[0].at >= LEAK_SECONDS:
        newest = samples[-1]
        growth = steady_growth(samples, LEAK_PARTS, LEAK_BYTES)
        if growth is not None:
            bytes_per_second, since = growth
            available = newest.available_bytes
            full_in = available / bytes_per_second
            is_near = full_in <= NEAR_SECONDS or available <= NEAR_SHARE * (newest.held_bytes + available)
            horizon = HORIZON_SECONDS
            if not is_near:
                horizon = min(horizon, HORIZON_SHARE * (newest.at - since))
            if full_in <= horizon:
                return Leak(bytes_per_second, full_in, is_near)
        samples = samples[len(samples) // 2 :]
        if newest.at - samples[0].at < LEAST_RECENT_SECONDS:
            break
    return None
