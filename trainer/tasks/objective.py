"""What every task is to the training loop: a module from a batch to a loss, and what is measured on held-out data."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from trainer.data.contract import Fields, Transform


class Objective(nn.Module):
    """A model together with what it is trained for.

    `model` maps one input tensor to one output tensor, from any library. `forward` takes a transformed
    batch on the model's device and returns the mean loss [] over its samples. The batch mean of a loss over several
    ranks' batches of one size must be the loss of the joined batch.
    """

    # Whether forward itself talks to other ranks, as contrastive learning does: then it ends on no rank without all.
    exchanges = False

    # Whether the parts of a sample that count differ in number: then forward's loss takes what does not count as zero,
    # and a step's loss and gradients are divided by the mean `weight` of all its micro batches, on all ranks.
    weighed = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, fields: Fields) -> Tensor: ...

    def weight(self, fields: Fields) -> Tensor:
        """The share [] of the batch that counts, where the objective is `weighed`."""
        raise NotImplementedError

    @abstractmethod
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        """Sums [] over the samples of a held-out batch, among them ``loss`` and ``count``; or rows, one per sample, for
        `joined`. No gradients, no exchanges."""

    def joined(self, measured: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's sums from `measure`'s of all its batches: sums added up, rows in order (collective)."""
        return measured

    def summary(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The means that `measure`'s sums over all batches and ranks amount to: ``loss``, ``accuracy``, …

        NaN if nothing counted, as when no held-out token is to be learnt.
        """
        count = sums["count"]
        return {name: value / count if count else math.nan for name, value in sums.items() if name != "count"}

    @abstractmethod
    def transform(self, *, training: bool) -> Transform:
        """From raw samples to the fields that `forward` and `measure` take; picklable."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens that the model reads in a sample; 0 where samples are not made of tokens."""
        return 0

    def flops_per_sample(self) -> float | None:
        """Floating-point operations of forward and backward for one sample, without recomputation; None: unknown.

        To be asked before a strategy spreads the model over ranks. May take a second.
        """
        return None
