"""The order of samples: a stateless function of the seed and the position, and for splits in blocks of the deals.

A run's position is the number of samples that all ranks together have consumed, so it stays valid if batch size or
number of ranks change. An epoch is `size` positions; it has every sample once, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trainer.data.contract import Indices, Split
from trainer.data.deals import Deal, epoch_offsets
from trainer.data.randomness import permuted
from trainer.errors import TrainerError

_CHUNK = 8192  # positions that are computed, and cached, together

# The samples at positions start .. start + count - 1: `Order.indices`, or another order.
Choice = Callable[[int, int, Sequence[Deal]], Indices]


class Order:
    """The training order of a split.

    A split in blocks is read block by block: for each epoch the blocks are shuffled, and the samples within each block.
    A reader needs one block at a time, or two if a batch crosses the end of one; so does each reader of a deal, and
    only blocks with a cut in them are read twice.
    """

    def __init__(self, split: Split, seed: int) -> None:
        if len(split) == 0:
            raise TrainerError("there are no samples to train on; check --data and --data-dir")
        self.size = len(split)
        self._seed = seed
        self._lengths = None if split.blocks is None else np.array(split.blocks, dtype=np.int64)

    def indices(self, start: int, count: int, deals: Sequence[Deal] = ()) -> Indices:
        """The samples at positions start .. start + count - 1, which may extend into later epochs.

        `deals` are the result of `redealt` for a position up to `start`; they concern splits in blocks only.
        """
        parts = [np.empty(0, dtype=np.int64)]
        while count > 0:
            epoch, offset = divmod(start, self.size)
            if self._lengths is None:
                first = offset - offset % _CHUNK
                chunk = permuted(self.size, (self._seed, epoch), first, min(self.size, first + _CHUNK))
                part = chunk[offset - first :][:count]
            else:
                positions = np.arange(start, start + min(count, self.size - offset))
                offsets = epoch_offsets(positions, epoch * self.size, self.size, deals)
                part = self._in_blocks(self._lengths, epoch, offsets)
            parts.append(part)
            start = start + len(part)
            count = count - len(part)
        return np.concatenate(parts)

    def _in_blocks(self, lengths: Indices, epoch: int, offsets: Indices) -> Indices:
        """The samples at these offsets in an epoch's sequence of blocks.

        Example: blocks of 3, 2 and 4 samples, which an epoch has in the order 2, 0, 1. Offsets 0 .. 3 are in block 2,
        4 .. 6 in block 0, 7 and 8 in block 1. So offset 5 is the second of block 0's samples, as this epoch has them.
        """
        blocks = permuted(len(lengths), (self._seed, epoch), 0, len(lengths))
        ends = np.cumsum(lengths[blocks])
        slots = np.searchsorted(ends, offsets, side="right")  # in the sequence of blocks
        samples = np.empty_like(offsets)
        for slot in np.unique(slots).tolist():
            block = int(blocks[slot])
            length = int(lengths[block])
            shuffled = permuted(length, (self._seed, epoch, block + 1), 0, length)
            here = slots == slot
            samples[here] = lengths[:block].sum() + shuffled[offsets[here] - (ends[slot] - length)]
        return samples


def evenly(chosen: int, total: int, start: int, count: int, deals: Sequence[Deal]) -> Indices:
    """Positions start .. start + count - 1 of `chosen` out of `total` samples, evenly spread, ascending."""
    return np.arange(start, min(start + count, chosen), dtype=np.int64) * total // chosen
