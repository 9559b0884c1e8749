"""The order of samples: a stateless function of (seed, position).

A run's position is the number of samples that all ranks together have consumed, so it stays valid if batch size or
number of ranks change.
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
        """The samples at positions start .. start + count - 1, which may extend into later epochs.

        `deals` are the result of `redealt` for a position up to `start`.
        """
        ...


def order_for(split: Split, seed: int) -> Order:
    """The training order of a split. Raises TrainerError for a split without samples."""
    if len(split) == 0:
        raise TrainerError("there are no samples to train on; check --data and --data-dir")
    blocks = split.blocks
    return ShuffledOrder(len(split), seed) if blocks is None else BlockOrder(blocks, seed)


def micro_start(consumed: int, micro: int, rank: int, ranks: int, batch_size: int) -> int:
    """The position where a rank's micro batch starts. Within a micro batch, ranks follow one another.

    So a step of R ranks with batch B takes the same samples as one process with batch R * B.
    """
    return consumed + (micro * ranks + rank) * batch_size
