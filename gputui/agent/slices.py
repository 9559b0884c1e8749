"""How much of a long task fits into one turn of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A slice is one transaction; several make a turn of TURN_SECONDS, which is also what one part may take of a turn for
# what it does run by run.
SLICE_SECONDS = 0.008
TURN_SECONDS = 0.016


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
