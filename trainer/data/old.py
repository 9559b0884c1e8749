"""Data sets, and the sampler that says which samples each rank takes.

The sampler holds no state: the samples at any position of the run are a function of (seed, position). A run's position
is the number of samples that all ranks together have consumed, so it survives another batch size or number of ranks.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config import Settings
from trainer.errors import TrainerError

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_BLOCK = 8192  # positions whose order is computed together
_MASK = 2**64 - 1


class Split(Protocol):
    """Samples that can be had by number, in any order."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The inputs and targets of these samples, stacked."""
        ...


@dataclass(frozen=True)
class Data:
    """What is trained on, and what is held out from training to validate on."""

    train: Split
    held_out: Split


def load_data(settings: Settings) -> Data:
    """The data of a task; needs no network. Raises TrainerError where it is not installed."""
    return _source_text(settings.context) if settings.task == "lm" else _digits()


# --- which samples, in which order ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampler:
    """A new order of all samples for each epoch, computed for just the positions that are asked for.

    Position p lies in epoch p // size; within an epoch every sample comes exactly once. The order is a keyed
    permutation: a Feistel network over the smallest power of four that fits, repeated for values outside the range.
    Any block of it can be computed alone, whatever the size of the data.
    """

    size: int
    seed: int

    def indices(self, start: int, count: int) -> Indices:
        """The samples at the positions start .. start + count - 1; they may reach into following epochs."""
        parts = []
        while count > 0:
            epoch, place = divmod(start, self.size)
            block, offset = divmod(place, _BLOCK)
            part = _ordered_block(self.size, self.seed, epoch, block)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts)


def rank_positions(consumed: int, micro: int, rank: int, ranks: int, batch_size: int) -> int:
    """Where a rank's micro batch starts: micro batches follow one another, each dealt out to the ranks in order.

    So a step of R ranks with batch B takes the very samples of one process with batch R * B.
    """
    return consumed + (micro * ranks + rank) * batch_size


@functools.lru_cache(maxsize=8)
def _ordered_block(size: int, seed: int, epoch: int, block: int) -> Indices:
    """The samples at positions block * _BLOCK and following of an epoch, up to the end of block or epoch."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [_mix(_mix(seed) ^ _mix(epoch * _ROUNDS + number + 1)) for number in range(_ROUNDS)]
    values = np.arange(block * _BLOCK, min(size, (block + 1) * _BLOCK), dtype=np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: _Words, half_bits: int, keys: list[int]) -> _Words:
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> np.uint64(half_bits), values & mask
    for key in keys:
        mixed = (right ^ np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(value: int) -> int:
    """The finaliser of splitmix64: neighbouring values become unrelated ones."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


# --- handwritten digits -----------------------------------------------------------------------------------------------


class Images:
    """Images [n, 1, 8, 8] and their classes [n], in memory."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(indices)
        return self._images[chosen], self._labels[chosen]


def _digits() -> Data:
    """scikit-learn's 1797 scanned digits; every fifth one is held out, whatever the seed.

    The table is read from the installed package without importing it: that would take most of a second on every rank.
    """
    package = importlib.util.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or []
    tables = [path for folder in folders if (path := Path(folder) / "datasets" / "data" / "digits.csv.gz").is_file()]
    if not tables:
        raise TrainerError("--task digits needs the digits that come with scikit-learn: pip install scikit-learn")
    with gzip.open(tables[0], "rt", encoding="ascii") as lines:  # 64 pixels of 0..16, then the class
        table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
    images = torch.from_numpy(table[:, :-1]).float().div(16).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].copy())
    test = torch.arange(len(labels)) % 5 == 0
    return Data(train=Images(images[~test], labels[~test]), held_out=Images(images[test], labels[test]))


# --- the standard library's source text -------------------------------------------------------------------------------


class Windows:
    """A text cut into windows of `context` bytes; the target of each byte is the one after it."""

    def __init__(self, text: bytes, context: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        starts = torch.from_numpy(indices).unsqueeze(1) * self._context
        windows = self._text[starts + torch.arange(self._context + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def _source_text(context: int) -> Data:
    """The modules at the top of the running interpreter's standard library; about one file in 25 is held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for path in sorted(folder.glob("*.py")):
        held_out = zlib.crc32(path.name.encode()) % 25 == 0
        parts[held_out].append(path.read_bytes())
    train, held = b"\n".join(parts[False]), b"\n".join(parts[True])
    if min(len(train), len(held)) <= context:
        raise TrainerError(f"--task lm found too little Python source in {folder}; use a Python that ships its library")
    return Data(train=Windows(train, context), held_out=Windows(held, context))
