"""An interface of all tasks to the loop, and random draws that depend on a sample's position."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainer.data.contract import CropDraw, Fields, Indices, Transform
from trainer.data.randomness import GAMMA, finalised


class Objective(nn.Module):
    """A model, one input tensor to one output tensor, together with what it is trained for.

    `forward` takes a transformed batch on the model's device and returns the mean loss [] over its samples. The mean of
    several ranks' losses must be the loss of their joined batch. A task of one's own needs no more than `forward`, and
    its model may take and return anything.

    Attributes:
        exchanges: forward itself talks to other ranks, so it ends on no rank without all.
        weighed: the parts of a sample that count differ in number. Forward's loss takes what does not count as zero,
            and a step's loss and gradients are divided by the mean `weight` of its micro batches on all ranks.
        tokens_per_sample: tokens that the model reads in a sample; 0 where samples are not made of tokens.
        metrics: names of the means in `summary`.
    """

    exchanges = False
    weighed = False
    tokens_per_sample = 0
    metrics: tuple[str, ...] = ("loss",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, fields: Fields) -> Tensor: ...

    def weight(self, fields: Fields) -> Tensor:
        """The share [] of the batch that counts, where the objective is `weighed`."""
        raise NotImplementedError

    def measure(self, fields: Fields) -> Mapping[str, Tensor | float]:
        """Sums of a held-out batch, with ``loss`` and ``count``, or rows for `joined`. No gradient or exchange."""
        samples = len(next(iter(fields.values())))
        loss = self(fields) * samples
        return {"loss": loss, "count": torch.full_like(loss, samples)}

    def joined(self, measured: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's sums from `measure`'s of all its batches: sums added up, rows in order (collective)."""
        return measured

    def summary(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The means that sums over all batches and ranks amount to; NaN if nothing counted."""
        count = sums["count"] or math.nan
        return {name: value / count for name, value in sums.items() if name != "count"}

    def transform(self, *, training: bool) -> Transform:
        """From raw samples to the fields that `forward` and `measure` take; picklable."""
        return _as_they_are

    def crops(self) -> CropDraw | None:
        """The crops of images that are decoded when they are read to train on, by position; None: whole images."""
        return None

    def flops_per_sample(self) -> float | None:
        """Operations of forward and backward for a sample; None: unknown. Ask before the model is spread over ranks."""
        return None


def _as_they_are(raw: Fields, positions: Indices) -> Fields:
    return raw


def uniform(seed: int, purpose: str, positions: Indices, count: int) -> npt.NDArray[np.float64]:
    """`count` numbers from [0, 1) for each sample's position in the run: [positions, count].

    They are the same after a resume, on any number of ranks and in any batch: each position has its own splitmix64
    generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    name = f"{seed}/{purpose}".encode()
    key = np.frombuffer(hashlib.blake2b(name, digest_size=8).digest(), dtype="<u8").astype(np.uint64)
    starts = finalised(key + positions.astype(np.uint64) * GAMMA)
    steps = np.arange(1, count + 1, dtype=np.uint64) * GAMMA
    numbers = finalised(starts[:, None] + steps)
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
