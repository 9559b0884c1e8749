"""Host memory that grows steadily towards the machine's limit. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# Below it, caches that fill and the first epoch look the same as a leak.
LEAST_SECONDS = 900.0
LEAST_SAMPLES = 20
LEAST_GROWTH_BYTES = 256 << 20
# Told when the memory would be full within a night.
HORIZON_SECONDS = 12 * 3600.0
# Each quarter of the time must have grown, by at least this share of an even growth: what levels off is no leak.
EVEN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class MemorySample:
    """At ``at`` (monotonic seconds) the run's processes held so much private memory, and the host had so much left."""

    at: float
    held_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Leak:
    """A steady growth, and when it meets the limit."""

    bytes_per_second: float
    full_in_seconds: float


def find_leak(samples: Sequence[MemorySample]) -> Leak | None:
    """The leak that samples of one attempt, in their order, show; None where there is none that matters."""
    if len(samples) < LEAST_SAMPLES:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    growth = last.held_bytes - first.held_bytes
    if seconds < LEAST_SECONDS or growth < LEAST_GROWTH_BYTES:
        return None
    rate = growth / seconds
    quarter = len(samples) // 4
    marks = [samples[0], samples[quarter], samples[2 * quarter], samples[3 * quarter], last]
    for before, after in itertools.pairwise(marks):
        if after.held_bytes - before.held_bytes < EVEN_SHARE * rate * (after.at - before.at):
            return None
    full_in = last.available_bytes / rate
    return Leak(rate, full_in) if full_in <= HORIZON_SECONDS else None
