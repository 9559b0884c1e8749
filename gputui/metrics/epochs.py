"""One counter of steps from an epoch and a place in it."""

from __future__ import annotations

from collections.abc import Sequence


class EpochCount:
    """Counts the steps of a line that names an epoch and a place in it on through the training.

    Epochs count from 1, or from 0 where an epoch 0 was printed: a script that resumes at epoch 5 has four behind it.
    An epoch is as long as the first total that is printed, or without one as the first epoch that ends. Places under
    another total, as after a change of the batch, are converted to that length: all attempts count on one scale. A
    place that passes its total, or does not begin again with the next epoch, is a step already.

    ``first`` is the number of the first epoch and ``length`` that of an epoch's steps (0 for such a place), both None
    until they are known. ``learned`` has the two, then 1 once an epoch has ended and shown which; None before the first
    line.
    """

    def __init__(self, learned: Sequence[int] | None = None) -> None:
        self.first, self.length, is_sure = (*(learned or ()), None, None, None)[:3]
        self._is_sure = bool(is_sure)
        self._last: tuple[int, int] | None = None
        self._stride = 1
        self._last_total: int | None = None
        self.other_total: int | None = None
        """The total of a whole epoch whose places were converted; None if there was none."""

    @property
    def learned(self) -> Sequence[int] | None:
        if self.first is None or self.length is None:
            if self.first is None:
                return None
            return (self.first,)
        if self._is_sure:
            return (self.first, self.length, 1)
        return (self.first, self.length)

    @property
    def state(self) -> tuple[int | None, ...]:
        return (self.first, self.length, int(self._is_sure), *(self._last or (None, None)), self._stride)

    @property
    def remark(self) -> str | None:
        """A sentence on places that were converted."""
        if self.other_total is None:
            return None
        return (
            f"an epoch has {self.other_total} places instead of {self.length}, as after a change of the batch: its "
            f"steps are converted to epochs of {self.length}, so that all attempts have one axis"
        )

    @classmethod
    def of_state(cls, state: Sequence[int | None]) -> EpochCount:
        """The count that goes on from a ``state``."""
        count = cls()
        count.first, count.length, is_sure, last_epoch, last_place, stride = state
        count._is_sure = bool(is_sure)
        count._stride = stride or 1
        if last_epoch is not None and last_place is not None:
            count._last = (last_epoch, last_place)
        return count

    def step(self, epoch: int, place: int, total: int | None) -> int:
        """The step of the next line."""
        if self.first is None:
            self.first = 1
        self.first = min(epoch, self.first)
        if not self._is_sure and self._last != (epoch, place):
            self._learn(epoch, place, total)
        is_later = self._last is not None and epoch > self._last[0]
        if total and self.length and total != self.length and total == self._last_total and is_later:
            # A validation's total changes within its epoch.
            self.other_total = total
        self._last = (epoch, place)
        self._last_total = total
        if not self.length:
            return place
        if total:
            place = place * self.length // total
        return (epoch - self.first) * self.length + place

    def _learn(self, epoch: int, place: int, total: int | None) -> None:
        last_epoch, last_place = self._last or (epoch, place)
        is_next = epoch > last_epoch
        if (total is not None and place > total) or (is_next and place > last_place):
            self.length = 0
            self._is_sure = True
        elif is_next:
            self.length = self.length or total or last_place + self._stride - place
            self._is_sure = True
        elif total is not None:
            self.length = self.length or total
        else:
            self._stride = max(1, place - last_place)
