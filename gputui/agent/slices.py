"""Time budgets of the loop: for one turn, and for one slice of a long task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

# A slice is one transaction; several make a turn of TURN_SECONDS.
SLICE_SECONDS = 0.008
TURN_SECONDS = 0.016


@dataclass(slots=True)
class Turn:
    """The time that all parts of a turn share for their work per run. Each part serves at least one run in every turn,
    so none starves. ``clock`` returns monotonic seconds."""

    clock: Callable[[], float]
    _ends_at: float = math.inf
    _postponed: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self._ends_at = self.clock() + TURN_SECONDS

    def is_spent(self) -> bool:
        """Whether the remaining work has to wait for the next turn."""
        return self.clock() >= self._ends_at

    def postpones(self, part: str) -> bool:
        """Whether a part that does not divide its work waits for the next turn: if this one is spent, and the part has
        not waited already."""
        if part in self._postponed or not self.is_spent():
            self._postponed.discard(part)
            return False
        self._postponed.add(part)
        return True


@dataclass(slots=True)
class SliceSize:
    """A number of rows or pages that takes about SLICE_SECONDS, adapted to how long earlier slices took. ``clock``
    returns monotonic seconds."""

    clock: Callable[[], float]
    count: int
    least: int
    most: int

    def run(self, act: Callable[[int], None]) -> None:
        """Call ``act`` with the current number and adapt the number to the time that it took."""
        began = self.clock()
        act(self.count)
        took = self.clock() - began
        factor = 2.0 if took <= 0 else min(2.0, max(0.25, SLICE_SECONDS / took))
        self.count = min(self.most, max(self.least, int(self.count * factor)))
