"""The rate of updates: as in the settings, and lower while the line does not keep up."""

from __future__ import annotations

LAG_SECONDS = 0.5
"""A line with a larger lag does not keep up."""

SLOW_LEAST_SECONDS = 1.0
LONGEST_SECONDS = 8.0

CALM_SECONDS = 15.0
"""Time without lag after which the rate doubles again."""


class FramePace:
    """Decides when a snapshot is due; keys are always answered at once. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._halvings = 0
        self._changed_at = float("-inf")
        self._updated_at = float("-inf")
        self._late_at = float("-inf")

    def interval(self, refresh_seconds: float, choice: str) -> float:
        """Seconds between updates.

        Args:
            refresh_seconds: the interval on a line that keeps up.
            choice: the setting ``slow_line``.
        """
        if choice == "off":
            return refresh_seconds
        halvings = self._halvings + (choice == "on")
        if not halvings:
            return refresh_seconds
        start = max(refresh_seconds, SLOW_LEAST_SECONDS)
        return max(refresh_seconds, min(LONGEST_SECONDS, start * 2.0**halvings))

    @property
    def is_slowed(self) -> bool:
        """True if the rate was halved because of the line."""
        return self._halvings > 0

    def note_lag(self, lag_seconds: float, now: float) -> None:
        """Take the current lag, and halve or double the rate by one step."""
        if lag_seconds > LAG_SECONDS:
            self._late_at = now
            step = max(1.0, lag_seconds)
            if now - self._changed_at >= step and SLOW_LEAST_SECONDS * 2.0**self._halvings < LONGEST_SECONDS:
                self._halvings += 1
                self._changed_at = now
        elif self._halvings and now - max(self._late_at, self._changed_at) >= CALM_SECONDS:
            self._halvings -= 1
            self._changed_at = now

    def wait_seconds(self, interval: float, now: float) -> float:
        """Seconds until the next update is due."""
        return max(0.0, self._updated_at + interval - now)

    def note_update(self, now: float) -> None:
        """Note that an update was shown."""
        self._updated_at = now
