"""Host memory that grows steadily towards the machine's limit. Pure."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

# Below it, caches that fill and the first epoch look the same as a leak.
LEAST_SECONDS = 900.0
LEAST_SAMPLES = 24
LEAST_GROWTH_BYTES = 256 << 20
# Told when the memory would be full within a night, and sooner than after nearly as long again as it was seen to grow:
# a cache that may take half of what is left grows as evenly, and ends before that.
HORIZON_SECONDS = 12 * 3600.0
HORIZON_SHARE = 0.8
# The end is near when so small a share of what the run holds and could still get is left, or so little time.
NEAR_SHARE = 0.10
NEAR_SECONDS = 300.0
# A leak that began late is looked for in the newest half, quarter … of the samples, down to this time.
LEAST_RECENT_SECONDS = 3600.0
# From each part of the time to the next it must have grown, by at least this share of an even growth: what levels off,
# or only goes up and down, is no leak.
PARTS = 8
EVEN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class MemorySample:
    """At ``at`` (monotonic seconds) the run's processes held so much private memory, and the host had so much left."""

    at: float
    held_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Leak:
    """A steady growth, and when it meets the limit. ``is_near``: that is so soon that a run had better save now."""

    bytes_per_second: float
    full_in_seconds: float
    is_near: bool


_held = operator.attrgetter("held_bytes")


def find_leak(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak that samples of one attempt, in their order, show; None if there is none that matters."""
    while True:
        leak = _steady(samples)
        half = samples[len(samples) // 2 :]
        if leak is not None or not half or half[-1].at - half[0].at < LEAST_RECENT_SECONDS:
            return leak
        samples = half


def _steady(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak that all of the samples together show. What is compared is the least of each part: memory that is given
    back now and then, as by caches that are emptied, brings it down again."""
    if len(samples) < LEAST_SAMPLES or samples[-1].at - samples[0].at < LEAST_SECONDS:
        return None
    bounds = [len(samples) * part // PARTS for part in range(PARTS + 1)]

    def floor(part: int) -> MemorySample:
        return min(samples[bounds[part] : bounds[part + 1]], key=_held)

    first, last = floor(0), floor(PARTS - 1)
    growth = last.held_bytes - first.held_bytes
    if growth < LEAST_GROWTH_BYTES:
        # The common case costs no look at what lies between.
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
