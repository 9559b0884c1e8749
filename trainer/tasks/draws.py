"""Random numbers that depend on a seed, a purpose and a sample's position in the run, and on nothing else.

So what is drawn for a sample is the same after a resume, with any number of ranks and in any batch. Each
position has its own splitmix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014) whose start is a mix of the three; numpy computes them for a whole batch at once.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices

_Words = npt.NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, purpose: str, positions: Indices, count: int) -> npt.NDArray[np.float64]:
    """`count` numbers from [0, 1) for each position: [positions, count]."""
    name = f"{seed}/{purpose}".encode()
    key = np.frombuffer(hashlib.blake2b(name, digest_size=8).digest(), dtype="<u8").astype(np.uint64)
    starts = _mix(key + positions.astype(np.uint64) * _GAMMA)
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
    words = _mix(starts[:, None] + steps)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: _Words) -> _Words:
    """The finaliser of splitmix64: neighbouring words become unrelated ones."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
