"""Where the lines of a shape are in the training."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.metrics.epochs import EpochCount
from gputui.metrics.learning.shapes import Counters


class Position:
    """Where a shape's lines are in the training: one growing step of its places, epochs, or both.

    Places that begin again, in lines that name no epoch, are those of the next epoch; a header line may have named
    it. Smaller totals than before are those of something within the epoch, as a validation's bar of the same form.
    ``count`` is shared by the shapes that count alike, see `LearnedShape.scale`; ``place`` is the newest.
    """

    def __init__(self, count: EpochCount, state: Sequence[int | None] = ()) -> None:
        self.count = count
        self._epoch, self.place, self._total = state or (None, None, None)

    @property
    def state(self) -> tuple[int | None, ...]:
        return (self._epoch, self.place, self._total)

    @property
    def epoch_length(self) -> int | None:
        """The steps of an epoch, once they are known."""
        return (*(self.count.learned or ()), None, None)[1]

    def has_restarted(self, place: int, total: int | None) -> bool:
        """Return whether a place begins again."""
        is_nested = total is not None and self._total is not None and total < self._total
        return self.place is not None and place < self.place and not is_nested

    def step(self, counters: Counters, header_epoch: int | None, *, restarts: bool) -> int | None:
        """The step of a line with a place; None if it is that of something else."""
        place, total, epoch = counters.step, counters.step_total, counters.epoch
        assert place is not None
        if epoch is None:
            if total is not None and self._total is not None and total < self._total:
                return None
            if restarts:
                begins_again = self.has_restarted(place, total) and total == self._total
                earlier = -1 if self._epoch is None else self._epoch + begins_again
                epoch = max(header_epoch or 0, earlier)
            self._total, self._epoch = total, epoch
        self.place = place
        if epoch is None:
            return place
        return self.count.step(epoch, place, total)
