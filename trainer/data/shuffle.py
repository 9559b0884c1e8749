"""A new random order of all samples for each epoch, any part of which can be computed alone."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices
from trainer.data.deals import Deal

_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_CHUNK = 8192  # positions that are computed, and cached, together
_MASK = 2**64 - 1


@dataclass(frozen=True)
class ShuffledOrder:
    """A keyed permutation of 0 .. size - 1 per epoch, evaluated at just the positions that are asked for.

    It is a Feistel network over the smallest power of four that fits, repeated for values outside the range (cycle
    walking). Deals are ignored: readers never share a sample, and there are no blocks.
    """

    size: int
    seed: int

    def indices(self, start: int, count: int, deals: tuple[Deal, ...] = ()) -> Indices:
        parts = []
        while count > 0:
            epoch, position = divmod(start, self.size)
            chunk, offset = divmod(position, _CHUNK)
            part = _ordered_chunk(self.size, self.seed, epoch, chunk)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


@functools.lru_cache(maxsize=8)
def _ordered_chunk(size: int, seed: int, epoch: int, chunk: int) -> Indices:
    """The samples at positions chunk * _CHUNK .. (chunk + 1) * _CHUNK - 1 of an epoch, or up to its end."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [mix(mix(seed) ^ mix(epoch * _ROUNDS + number + 1)) for number in range(_ROUNDS)]
    values = np.arange(chunk * _CHUNK, min(size, (chunk + 1) * _CHUNK), dtype=np.uint64)
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


def mix(value: int) -> int:
    """The finaliser of splitmix64: neighbouring values become unrelated ones."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
