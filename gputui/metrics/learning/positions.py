"""Where the lines of a shape are: in an epoch, in a training, and in an output of several trainings."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.metrics.epochs import EpochCount
from gputui.metrics.learning.shapes import Counters

# A count that falls back by fewer strides is that of another rank, or of a bar that is drawn again.
_LEAST_STRIDES = 3


class Position:
    """Where a shape's lines are in their training: one growing step of its places, epochs, or both.

    Places that begin again, in lines that name no epoch, are those of the next epoch; a header line may have named
    it. Where places have no name of their own, smaller totals than before are those of something within the epoch, as a
    validation's bar of the same form. ``count`` is shared by the shapes that count alike, see `LearnedShape.scale`;
    ``place`` is the newest. ``first``, ``last``, ``was_end`` and ``base`` are those of `ContinuedCount`, and
    ``summarised`` is the step of its newest line that had none of its own.
    """

    def __init__(self, count: EpochCount, state: Sequence[int | None] = ()) -> None:
        self.count = count
        self._epoch, self.place, self._total, self.first, self.last, was_end, base, self.summarised = (
            state or (None,) * 8
        )
        self.was_end = bool(was_end)
        self.base = base or 0
        self.is_other_kind = False

    @property
    def state(self) -> tuple[int | None, ...]:
        return (
            self._epoch, self.place, self._total, self.first, self.last, int(self.was_end), self.base, self.summarised
        )  # fmt: skip

    @property
    def is_converted(self) -> bool:
        """Whether places of the newest epoch are converted to the length of others, so that several may be one step."""
        return bool(self._total and self.count.length) and self._total != self.count.length

    def has_restarted(self, place: int, total: int | None) -> bool:
        """Return whether a place begins again."""
        return self.place is not None and place < self.place and not self._is_nested(total)

    def _is_nested(self, total: int | None) -> bool:
        return total is not None and self._total is not None and total < self._total

    def step(self, counters: Counters, header_epoch: int | None, *, restarts: bool, may_nest: bool) -> int | None:
        """The step of a line with a place; None if it is that of something else."""
        place = counters.step
        total = counters.step_total
        epoch = counters.epoch
        assert place is not None
        if epoch is not None:
            # A validation may print lines of the same form within its epoch.
            self.is_other_kind = epoch == self._epoch and total != self._total
        else:
            is_next_epoch = (header_epoch or 0) > (self._epoch or 0)
            if may_nest and self._is_nested(total) and not is_next_epoch:
                return None
            if restarts:
                begins_again = self.has_restarted(place, total) and total == self._total
                epoch = header_epoch or 0
                if self._epoch is not None:
                    epoch = max(epoch, self._epoch + begins_again)
        self._total = total
        self._epoch = epoch
        self.place = place
        if epoch is None:
            return place
        return self.count.step(epoch, place, total)


class ContinuedCount:
    """One growing count over several trainings in an output, such as folds, or a training and its fine-tuning.

    A training begins where the places of a shape are back at their first: behind 1, 2, …, 10 the places 1, 2, … are 11,
    12, …. ``base`` is what was counted before the newest training, ``highest`` the highest count, and ``stride`` the
    least between two lines.
    """

    def __init__(self, state: Sequence[int | None] = ()) -> None:
        base, self.highest, self._stride = state or (None,) * 3
        self.base = base or 0

    @property
    def state(self) -> tuple[int | None, ...]:
        return (self.base, self.highest, self._stride)

    def count(self, position: Position, place: int, *, is_end: bool, repeats: bool = False) -> int:
        """Count a line of a shape.

        Args:
            place: Where it is in its training.
            is_end: No place comes after it.
            repeats: Lines of another shape have its metrics.
        """
        if position.last is None:
            position.base = self.base
            begins = repeats and self._is_far_behind(place)
        else:
            begins = self._begins_again(position, place)
        if begins:
            newest = position.base + (position.last or 0)
            if position.last is None or self.base + place <= newest:
                self.base = self.highest or 0
                if place == 0:
                    self.base += self._stride or 1
            position.base = self.base
        elif position.last is not None and place > position.last:
            self._stride = min(place - position.last, self._stride or place)
        if position.first is None:
            position.first = place
        position.last = place
        position.was_end = is_end
        count = position.base + place
        self.highest = max(count, self.highest or 0)
        return count

    @property
    def _least(self) -> int:
        return _LEAST_STRIDES * (self._stride or 1)

    def _begins_again(self, position: Position, place: int) -> bool:
        first = position.first or 0
        last = position.last or 0
        if position.is_other_kind or place >= last or place >= first + self._least:
            return False
        return position.was_end or last - place >= self._least

    def _is_far_behind(self, place: int) -> bool:
        return self.highest is not None and self.highest - self.base - place >= self._least
