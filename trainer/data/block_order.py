"""The order of samples in blocks that are costly to open, such as row groups."""

from __future__ import annotations

import numpy as np

from trainer.data.contract import Indices
from trainer.data.deals import Deal, epoch_offsets
from trainer.data.shuffle import ShuffledOrder, mix


class BlockOrder:
    """For each epoch, shuffles the blocks and the samples within each block; blocks are not mixed.

    A reader needs one block at a time, or two if a batch crosses the end of one. This holds for each reader of a deal:
    its lane is a contiguous range of the epoch's sequence of blocks, and only blocks with a cut in them are read twice.
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
            epoch, position = divmod(start, self.size)
            in_epoch = min(count, self.size - position)
            offsets = epoch_offsets(np.arange(start, start + in_epoch), epoch * self.size, self.size, deals)
            for contiguous in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
                parts += self._contiguous(epoch, int(contiguous[0]), len(contiguous))
            start, count = start + in_epoch, count - in_epoch
        return np.concatenate(parts)

    def _contiguous(self, epoch: int, start: int, count: int) -> list[Indices]:
        """The samples at offsets start .. start + count - 1 of an epoch's sequence of blocks."""
        parts = []
        blocks, ends = self._blocks(epoch)
        while count > 0:
            number = int(np.searchsorted(ends, start, side="right"))
            block, length = int(blocks[number]), int(self._lengths[blocks[number]])
            offset = start - (int(ends[number]) - length)
            rows = ShuffledOrder(length, mix(mix(self._seed) + block + 1))
            part = rows.indices(epoch * length + offset, min(count, length - offset)) + self._first[block]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return parts

    def _blocks(self, epoch: int) -> tuple[Indices, Indices]:
        """The blocks in the order of an epoch, and the offset at which each of them ends."""
        if epoch not in self._epochs:
            blocks = ShuffledOrder(len(self._lengths), self._seed).indices(
                epoch * len(self._lengths), len(self._lengths)
            )
            # Prefetching looks into the next epoch, so two epochs are in use around the end of one.
            recent = dict(list(self._epochs.items())[-1:])
            self._epochs = recent | {epoch: (blocks, np.cumsum(self._lengths[blocks]))}
        return self._epochs[epoch]
