"""The order of samples that lie in blocks, which are costly to open."""

from __future__ import annotations

import numpy as np

from trainer.data.contract import Indices
from trainer.data.deals import Deal, places_of
from trainer.data.shuffle import ShuffledOrder, mix


class BlockOrder:
    """For each epoch the blocks in a new order, and the samples within each block in a new order; blocks are not mixed.

    So a reader needs one block at a time, two where a batch reaches over the end of one. That holds for each reader of
    a deal: the epoch's row of blocks is cut into one part per lane, and only blocks with a cut in them are read twice.
    """

    def __init__(self, lengths: tuple[int, ...], seed: int) -> None:
        self.size = sum(lengths)
        self._seed = seed
        self._lengths = np.array(lengths, dtype=np.int64)
        self._first = np.cumsum(self._lengths) - self._lengths  # each block's first sample
        self._epochs: dict[int, tuple[Indices, Indices]] = {}

    def indices(self, start: int, count: int, deals: tuple[Deal, ...] = ()) -> Indices:
        parts = [np.empty(0, dtype=np.int64)]
        while count > 0:
            epoch, place = divmod(start, self.size)
            here = min(count, self.size - place)
            places = places_of(np.arange(start, start + here), epoch * self.size, self.size, deals)
            cuts = np.flatnonzero(np.diff(places) != 1) + 1
            for run in np.split(places, cuts):
                parts += self._connected(epoch, int(run[0]), len(run))
            start, count = start + here, count - here
        return np.concatenate(parts)

    def _connected(self, epoch: int, place: int, count: int) -> list[Indices]:
        """The samples at connected places of an epoch's row of blocks."""
        parts = []
        blocks, ends = self._blocks(epoch)
        while count > 0:
            turn = int(np.searchsorted(ends, place, side="right"))
            block, length = int(blocks[turn]), int(self._lengths[blocks[turn]])
            offset = place - (int(ends[turn]) - length)
            rows = ShuffledOrder(length, mix(mix(self._seed) + block + 1))
            part = rows.indices(epoch * length + offset, min(count, length - offset)) + self._first[block]
            parts.append(part)
            place, count = place + len(part), count - len(part)
        return parts

    def _blocks(self, epoch: int) -> tuple[Indices, Indices]:
        """The blocks in the order of an epoch, and the place in the epoch where each of them ends."""
        if epoch not in self._epochs:
            blocks = ShuffledOrder(len(self._lengths), self._seed).indices(
                epoch * len(self._lengths), len(self._lengths)
            )
            # Reading ahead looks at the epoch that follows, so two are in use at the turn from one to the next.
            recent = dict(list(self._epochs.items())[-1:])
            self._epochs = recent | {epoch: (blocks, np.cumsum(self._lengths[blocks]))}
        return self._epochs[epoch]
