"""Schedules of the sampler's tiers, and of retries after failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["fast", "processes", "slow", "link"]

PROCESSES_SECONDS = 3.0  # the dearest of the usual calls, some milliseconds (MangoHud, pull request 2104)
SLOW_SECONDS = 5.0  # what changes over minutes
LINK_ROUND_SECONDS = 10.0  # measuring the traffic of one GPU blocks for 20 ms or more
LINK_STEP_MIN_SECONDS = 1.0  # one GPU at a time, so that no tick is late
MIN_INTERVAL_SECONDS = 0.1  # the driver renews its values hardly more often
MAX_INTERVAL_SECONDS = 3600.0  # beyond it nobody could tell a hang from a pause
_SLACK_SECONDS = 0.005  # a timer that fires a little early must not skip its tick


class Cadence:
    """Moments on a fixed grid. A late tick does not shift the grid, and missed ticks are
    skipped."""

    __slots__ = ("every_seconds", "next_at")

    def __init__(self, every_seconds: float, start_at: float) -> None:
        self.every_seconds = every_seconds
        self.next_at = start_at

    def due(self, now: float) -> bool:
        """Return whether a moment has come. It is consumed, with all missed ones."""
        late = now - self.next_at
        if late < -_SLACK_SECONDS:
            return False
        passed = max(0, int((late + _SLACK_SECONDS) / self.every_seconds))
        self.next_at += (passed + 1) * self.every_seconds
        return True


class Schedule:
    """The tiers to read now. Every tier is due on the first tick, and slower ones only on a tick of
    the fast one, so that one wake-up serves all.

    ``link`` reads the PCIe traffic of one GPU per step, because a reading blocks for 2 x 20 ms. All
    GPUs have their turn in about LINK_ROUND_SECONDS.
    """

    def __init__(self, interval_seconds: float, now: float) -> None:
        self._fast = Cadence(bounded_interval(interval_seconds), now)
        self._slower: dict[Tier, Cadence] = {
            "processes": Cadence(PROCESSES_SECONDS, now),
            "slow": Cadence(SLOW_SECONDS, now),
            "link": Cadence(LINK_STEP_MIN_SECONDS, now),
        }

    @property
    def interval_seconds(self) -> float:
        return self._fast.every_seconds

    def set_interval(self, interval_seconds: float, now: float) -> None:
        """Change the fast tier's interval; the next tick is now."""
        self._fast = Cadence(bounded_interval(interval_seconds), now)

    def set_gpu_count(self, count: int) -> None:
        """Share the link round among ``count`` GPUs."""
        self._slower["link"].every_seconds = max(LINK_STEP_MIN_SECONDS, LINK_ROUND_SECONDS / max(1, count))

    def wait_seconds(self, now: float) -> float:
        """The time until the next tick."""
        return max(0.0, self._fast.next_at - now)

    def due(self, now: float) -> tuple[Tier, ...]:
        """The tiers to read now, fastest first; none between ticks."""
        if not self._fast.due(now):
            return ()
        return ("fast", *(tier for tier, cadence in self._slower.items() if cadence.due(now)))


@dataclass(slots=True)
class ReadBackoff:
    """A delay that doubles after each failure in a row, up to the longest."""

    first_seconds: float
    longest_seconds: float
    failures: int = 0
    due_at: float | None = None

    def fail(self, now: float, at_least_seconds: float = 0.0) -> float:
        """Note a failure; returns the delay."""
        delay = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 30))
        delay = max(delay, at_least_seconds)
        self.failures += 1
        self.due_at = now + delay
        return delay

    def due(self, now: float) -> bool:
        """Return whether the delay is over; true before any failure."""
        return self.due_at is None or now >= self.due_at

    def reset(self) -> None:
        self.failures = 0
        self.due_at = None


def bounded_interval(seconds: float) -> float:
    return min(MAX_INTERVAL_SECONDS, max(MIN_INTERVAL_SECONDS, seconds))
