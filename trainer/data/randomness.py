"""Numbers that look random, each computed from its index alone: a permutation by key, and hashes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices

_ROUNDS = 6  # with fewer, neighbours stay recognisable
GAMMA = np.uint64(0x9E3779B97F4A7C15)  # by which splitmix64 moves on

Words = npt.NDArray[np.uint64]


@functools.lru_cache(maxsize=16)
def permuted(size: int, key: tuple[int, ...], start: int, stop: int) -> Indices:
    """Elements start .. stop - 1 of the permutation of 0 .. size - 1 that the key chooses.

    A Feistel network permutes all numbers of an even number of bits: each round changes one half by a function of the
    other half. Where that gives `size` or more, the result is permuted again until it is less (cycle walking).

    Example: for size 10 the network permutes 0 .. 15. If it maps 3 to 12 and 12 to 7, element 3 is 7. No other element
    is 7, because nothing else is mapped to 12.
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    secrets = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    values = np.arange(start, stop, dtype=np.uint64)
    pending = np.arange(len(values))
    while len(pending):
        high = values[pending] >> half_bits
        low = values[pending] & mask
        for secret in secrets:
            mixed = (low ^ secret) * GAMMA
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            high, low = low, high ^ ((mixed >> np.uint64(32)) & mask)
        values[pending] = (high << half_bits) | low
        pending = pending[values[pending] >= size]
    return values.astype(np.int64)


def hashed(numbers: Words) -> Words:
    """Unrelated numbers for neighbouring ones, by splitmix64."""
    return finalised((numbers + np.uint64(1)) * GAMMA)


def finalised(numbers: Words) -> Words:
    """The finaliser of splitmix64: neighbouring words become unrelated ones."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
