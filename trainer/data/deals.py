"""Deals: which reader takes which position of a split in blocks, so that readers share hardly any blocks.

Batches take turns among the readers, but each reader needs blocks of its own. So an epoch's sequence of samples, block
after block, is cut into one range per reader, as long as what its turns take; it reads its range from the start.

A later deal in the same epoch does so with what is left of the ranges, put together. Example: an epoch of 10 samples::

    position  0  1  2  3  4  5  6  7  8  9
    reader    0  0  1  1  0  0  1  1  0  0   Deal(0, readers=2, turn=2): reader 0 takes 6 positions, reader 1 takes 4
    offset    0  1  6  7  2  3  8  9  4  5   in the sequence: reader 0 has the range 0 .. 5, reader 1 has 6 .. 9
    offset    0  1  6  7  2  3  4  5  8  9   if Deal(4, readers=1, turn=1) follows: 2 .. 5 and 8 .. 9 are left
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.data.contract import Indices


class Deal(NamedTuple):
    """The assignment of positions to the readers of a split.

    Attributes:
        start: the first position of the run that is dealt like this.
        readers: their number, over all ranks.
        turn: how many positions a reader takes before it is the next one's turn.
    """

    start: int
    readers: int
    turn: int

    def counts(self, begin: int, end: int) -> Indices:
        """The number of the positions begin .. end - 1 that each reader takes."""
        readers = np.arange(self.readers)
        return self._count_up_to(end, readers) - self._count_up_to(begin, readers)

    def places(self, positions: Indices, begin: int, end: int) -> Indices:
        """The place of each position in a sequence of end - begin samples, cut into one range per reader."""
        reader = (positions - self.start) // self.turn % self.readers
        earlier = self._count_up_to(positions, reader) - self._count_up_to(begin, reader)
        return _starts(self.counts(begin, end))[reader] + earlier

    def _count_up_to(self, end: Indices | int, reader: Indices) -> Indices:
        """The number of the positions from this deal's start to end - 1 that a reader takes."""
        rounds, rest = np.divmod(end - self.start, self.readers * self.turn)
        count: Indices = rounds * self.turn + np.clip(rest - reader * self.turn, 0, self.turn)
        return count


_UNDEALT = Deal(0, 1, 1)


def redealt(deals: Sequence[Deal], size: int, position: int, readers: int, turn: int) -> tuple[Deal, ...]:
    """Add a deal from `position` on, and drop those that no longer matter. Epochs have `size` samples.

    An epoch starts with the last deal before it. A deal within an epoch divides what is left of it, so every sample is
    still taken once. Dropped are deals of past epochs, and those at or after `position`, of which nothing was taken.
    """
    if readers == 1:
        turn = 1
    current = [deal for deal in deals if deal.start < position] or [_UNDEALT]
    new = Deal(position, readers, turn)
    if current[-1][1:] != new[1:]:
        current.append(new)
    return tuple(_since(current, position - position % size))


def epoch_offsets(positions: Indices, begin: int, size: int, deals: Sequence[Deal]) -> Indices:
    """Map contiguous positions of the epoch from `begin` on to offsets 0 .. size - 1 in its sequence of samples."""
    end = begin + size
    current = _since([_UNDEALT, *(deal for deal in deals if deal.start <= positions[0])], begin)
    remainders = []  # per superseded deal: the start and the length of what is left of each reader's range
    for deal, following in itertools.pairwise(current):
        lengths = deal.counts(begin, end)
        consumed = deal.counts(begin, following.start)
        remainders.append((_starts(lengths) + consumed, lengths - consumed))
        begin = following.start
    offsets = current[-1].places(positions, begin, end)
    # A deal's places are in what the one before it left, so that one's remainder gives its places, and so on.
    for starts, lengths in reversed(remainders):
        ranges = np.searchsorted(np.cumsum(lengths), offsets, side="right")
        offsets = starts[ranges] + offsets - _starts(lengths)[ranges]
    return offsets


def _since(deals: list[Deal], begin: int) -> list[Deal]:
    """The deal that the epoch from `begin` on starts with, and the later ones."""
    return deals[max(0, sum(deal.start <= begin for deal in deals) - 1) :]


def _starts(lengths: Indices) -> Indices:
    """The starts of adjoining ranges of these lengths."""
    return np.cumsum(lengths) - lengths
