"""Which samples a run takes, and when.

No state is held: the samples at any position of the run are a function of (seed, position). A run's position is the
number of samples that all ranks together have consumed, so it survives another batch size or number of ranks.
"""

from __future__ import annotations

from typing import Protocol

from trainer.data.block_order import BlockOrder
from trainer.data.contract import Indices, Split
from trainer.data.deals import Deal
from trainer.data.shuffle import ShuffledOrder
from trainer.errors import TrainerError


class Order(Protocol):
    """A new order of all samples for each epoch. Position p lies in epoch p // size; an epoch has every sample once."""

    @property
    def size(self) -> int: ...

    def indices(self, start: int, count: int, deals: tuple[Deal, ...] = ()) -> Indices:
        """The samples at the positions start .. start + count - 1; they may reach into following epochs.

        `deals` are those of `redealt`, up to that position.
        """
        ...


def order_for(split: Split, seed: int) -> Order:
    """The order in which a split is trained on. Raises TrainerError for a split without samples."""
    if len(split) == 0:
        raise TrainerError("there are no samples to train on; check --data and --data-dir")
    blocks = split.blocks
    return ShuffledOrder(len(split), seed) if blocks is None else BlockOrder(blocks, seed)


def micro_start(consumed: int, micro: int, rank: int, ranks: int, batch_size: int) -> int:
    """Where a rank's micro batch starts: micro batches follow one another, each dealt out to the ranks in order.

    So a step of R ranks with batch B takes the very samples of one process with batch R * B.
    """
    return consumed + (micro * ranks + rank) * batch_size
