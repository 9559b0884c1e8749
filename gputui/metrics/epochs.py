"""One counter of steps from an epoch and a place in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class _Place(NamedTuple):
    epoch: int
    place: int


class CountState(NamedTuple):
    """What an `EpochCount` goes on from; stored as a list.

    Attributes:
        first: See `EpochCount`.
        length: See `EpochCount`.
        is_sure: 1 once an epoch has ended and shown both.
        last_epoch: The epoch of the last line, None before the first one.
        last_place: The place of the last line, None before the first one.
        stride: The places from one line to the next, for lines without a total.
    """

    first: int | None
    length: int | None
    is_sure: int
    last_epoch: int | None
    last_place: int | None
    stride: int


class EpochCount:
    """Counts the steps of a line that names an epoch and a place in it on through the training.

    Epochs count from 1, or from 0 where an epoch 0 was printed: a script that resumes at epoch 5 has four behind it.
    An epoch is as long as the first total that is printed, or without one as the first epoch that ends. Places under
    another total, as after a change of the batch, are converted to that length: all attempts count on one scale. A
    place that passes its total, or does not begin again with the next epoch, is a step already.

    Attributes:
        first: The number of the first epoch, None until it is known.
        length: The steps of an epoch, None until it is known; 0 for places that are steps already.
        other_total: The total of a whole epoch whose places were converted, None if there was none.
    """

    def __init__(self, learned: Sequence[int] | None = None) -> None:
        """Begin with what another count has ``learned``."""
        self.first: int | None = None
        self.length: int | None = None
        self._is_sure = False
        match learned:
            case [first]:
                self.first = first
            case [first, length, *is_sure]:
                self.first = first
                self.length = length
                self._is_sure = is_sure == [1]
        self._last: _Place | None = None
        self._stride = 1
        self._last_total: int | None = None
        self.other_total: int | None = None

    @property
    def learned(self) -> Sequence[int] | None:
        """``first`` and ``length``, as far as they are known, then 1 once an epoch has ended and shown which; None
        before the first line."""
        if self.first is None:
            return None
        if self.length is None:
            return (self.first,)
        if self._is_sure:
            return (self.first, self.length, 1)
        return (self.first, self.length)

    @property
    def state(self) -> CountState:
        last_epoch, last_place = self._last or (None, None)
        return CountState(
            first=self.first,
            length=self.length,
            is_sure=int(self._is_sure),
            last_epoch=last_epoch,
            last_place=last_place,
            stride=self._stride,
        )

    @classmethod
    def of_state(cls, stored: Sequence[int | None]) -> EpochCount:
        """The count that goes on from a `state`."""
        first, length, is_sure, last_epoch, last_place, stride = stored
        count = cls()
        count.first = first
        count.length = length
        count._is_sure = bool(is_sure)
        count._stride = stride or 1
        if last_epoch is not None and last_place is not None:
            count._last = _Place(last_epoch, last_place)
        return count

    @property
    def remark(self) -> str | None:
        """A sentence on places that were converted."""
        if self.other_total is None:
            return None
        return (
            f"an epoch has {self.other_total} places instead of {self.length}, as after a change of the batch: its "
            f"steps are converted to epochs of {self.length}, so that all attempts have one axis"
        )

    def step(self, epoch: int, place: int, total: int | None) -> int:
        """The step of the next line."""
        if self.first is None:
            self.first = 1
        self.first = min(epoch, self.first)
        if not self._is_sure and self._last != (epoch, place):
            self._learn(epoch, place, total)
        self._note_other_total(epoch, total)
        self._last = _Place(epoch, place)
        self._last_total = total
        if not self.length:
            return place
        converted = place
        if total:
            converted = place * self.length // total
        return (epoch - self.first) * self.length + converted

    def _note_other_total(self, epoch: int, total: int | None) -> None:
        """Note a total that differs from an epoch's length and stays into the next epoch; a validation's total changes
        within its epoch."""
        is_other = bool(total and self.length) and total != self.length
        is_later = self._last is not None and epoch > self._last.epoch
        if is_other and is_later and total == self._last_total:
            self.other_total = total

    def _learn(self, epoch: int, place: int, total: int | None) -> None:
        """Learn the length of an epoch from a line at another place than the last one."""
        last_epoch, last_place = self._last or (epoch, place)
        is_next_epoch = epoch > last_epoch
        passes_total = total is not None and place > total
        goes_on = is_next_epoch and place > last_place
        if passes_total or goes_on:
            self.length = 0
            self._is_sure = True
        elif is_next_epoch:
            self.length = self.length or total or last_place + self._stride - place
            self._is_sure = True
        elif total is not None:
            self.length = self.length or total
        else:
            self._stride = max(1, place - last_place)
