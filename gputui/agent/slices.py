"""How much fits into one turn of the loop: of all that is done run by run, and of a long task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# A slice is one transaction; several make a turn of TURN_SECONDS.
SLICE_SECONDS = 0.008
TURN_SECONDS = 0.016


@dataclass(slots=True)
class Turn:
    """The time that all parts of a turn share for what they do run by run. Each does it for one run in any turn, so
    that no part waits for ever. ``clock`` gives monotonic seconds."""

    clock: Callable[[], float]
    _ends_at: float = math.inf

    def begin(self) -> None:
        self._ends_at = self.clock() + TURN_SECONDS

    def is_spent(self) -> bool:
        """Whether the rest is to be left to the next turn."""
        return self.clock() >= self._ends_at


@dataclass(slots=True)
class SliceSize:
    """A number of rows or pages that takes about SLICE_SECONDS, found by how long the former ones took. ``clock`` gives
    monotonic seconds."""

    clock: Callable[[], float]
    count: int
    least: int
    most: int

    def run(self, act: Callable[[int], None]) -> None:
        """Do ``act`` with as many as fit, and learn from how long it took."""
        began = self.clock()
        act(self.count)
        took = self.clock() - began
        factor = 2.0 if took <= 0 else min(2.0, max(0.25, SLICE_SECONDS / took))
        self.count = min(self.most, max(self.least, int(self.count * factor)))
