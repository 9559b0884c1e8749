"""Contract between data sources and the trainer: splits return samples by number, in whatever order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.errors import TrainerError, one_line

Indices = npt.NDArray[np.int64]

# A batch: named tensors that all have the samples along their first dimension.
Fields = dict[str, Tensor]

# Random crops of images [n, crops, 4]: the area as a share of the image's, width over height, and where it is, across
# and down, from 0 to 1.
Crops = npt.NDArray[np.float64]

# Draws the crops of the samples at these positions. Picklable.
CropDraw = Callable[[Indices], Crops]

# Turns raw fields and the positions of their samples into the task's inputs, on the CPU. Its random draws depend on
# seed and position alone, so that a resumed run draws the same.
Transform = Callable[[Fields, Indices], Fields]


class BrokenSample(TrainerError):  # noqa: N818  (it names what is broken; the run may continue)
    """A sample cannot be read; training may continue with another one."""

    def __init__(self, index: int, where: str, reason: str | Exception) -> None:
        # All arguments: unpickling calls the constructor with them.
        super().__init__(index, where, reason)
        self.index = index
        self.where = where
        self.reason = reason if isinstance(reason, str) else getattr(reason, "strerror", None) or one_line(reason)

    def __str__(self) -> str:
        return f"sample {self.index} ({self.where}) cannot be read: {self.reason}"


class Split(ABC):
    """Raw samples by number, in any order. Picklable.

    Images come as ``{"image": uint8 [n, channels, height, width], "label": int64 [n]}``, text as
    ``{"tokens": int64 [n, context + 1]}``, and marked text also ``"learn"`` and ``"begin"``, bool alike. Fields for a
    task of one's own may be any.
    """

    # Lengths, in samples, of blocks that are best read together; None if every order of reading costs the same.
    blocks: tuple[int, ...] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices) -> Fields:
        """These samples, stacked. Raises BrokenSample for the first one that cannot be read."""

    def cache_use(self) -> tuple[int, int]:
        """The samples read since the last call that a cache might have had, and those that it had."""
        return 0, 0

    def expect(self, indices: Indices) -> None:
        """Start reading these samples in the background, if that helps. Returns at once; never raises BrokenSample."""
        return


@dataclass(frozen=True)
class TensorSplit(Split):
    """Samples in memory: tensors that all have the samples along their first dimension. Raises ValueError if not."""

    fields: Fields

    def __post_init__(self) -> None:
        lengths = {name: len(tensor) for name, tensor in self.fields.items()}
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"fields have different numbers of samples: {listed or 'there are none'}")

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def read(self, indices: Indices) -> Fields:
        chosen = torch.from_numpy(indices)
        return {name: tensor[chosen] for name, tensor in self.fields.items()}


@dataclass(frozen=True)
class Images:
    """Training and held-out images, all of the same shape."""

    train: Split
    held_out: Split
    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """Training and held-out windows of `context` + 1 tokens each, numbered 0 .. vocabulary - 1.

    Attributes:
        marked: they are of packed documents: splits also return, for each token, whether the loss covers it ("learn")
            and whether a document begins there ("begin").
        tokenizer: the folder of the one that made the tokens, if known.
        prompts: the first tokens of held-out documents, for sampling answers.
    """

    train: Split
    held_out: Split
    context: int
    vocabulary: int
    marked: bool = False
    tokenizer: Path | None = None
    prompts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Samples:
    """Training and held-out samples of any fields, for a task of one's own.

    Attributes:
        facts: what the function that builds the model may want to know, by the names of its parameters.
    """

    train: Split
    held_out: Split
    facts: Mapping[str, Any] = field(default_factory=dict)


Data = Images | Text | Samples
