"""The order of samples: a stateless function of the seed and the position, and for splits in blocks of the deals.

A run's position is the number of samples that all ranks together have consumed, so it stays valid if batch size or
number of ranks change. An epoch is `size` positions; it has every sample once, in an order of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices, Split
from trainer.errors import TrainerError

_ROUNDS = 6  # of the network that permutes: with fewer, neighbours stay recognisable
_CHUNK = 8192  # positions that are computed, and cached, together
GAMMA = np.uint64(0x9E3779B97F4A7C15)  # by which splitmix64 moves on

Words = npt.NDArray[np.uint64]


class Deal(NamedTuple):
    """The assignment of positions to the readers of a split: blocks, round-robin.

    Attributes:
        start: the first position of the run that is dealt like this.
        lanes: the number of readers. Each gets a contiguous part of an epoch, so readers share hardly any blocks.
        turn: how many positions a reader takes before it is the next one's turn.
    """

    start: int
    lanes: int
    turn: int

    def taken(self, lane: Indices, stop: Indices | int) -> Indices:
        """The number of the positions start .. until - 1 that a lane takes."""
        rounds, rest = np.divmod(stop - self.start, self.lanes * self.turn)
        count: Indices = rounds * self.turn + np.clip(rest - lane * self.turn, 0, self.turn)
        return count


_UNDEALT = Deal(0, 1, 1)

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
            epoch, position = divmod(start, self.size)
            if self._lengths is None:
                first = position - position % _CHUNK
                chunk = _permuted(self.size, (self._seed, epoch), first, min(self.size, first + _CHUNK))
                part = chunk[position - first : position - first + count]
            else:
                positions = np.arange(start, start + min(count, self.size - position))
                offsets = _epoch_offsets(positions, epoch * self.size, self.size, deals)
                part = self._in_blocks(self._lengths, epoch, offsets)
            parts.append(part)
            start = start + len(part)
            count = count - len(part)
        return np.concatenate(parts)

    def _in_blocks(self, lengths: Indices, epoch: int, offsets: Indices) -> Indices:
        """The samples at these offsets in an epoch's sequence of blocks."""
        blocks = _permuted(len(lengths), (self._seed, epoch), 0, len(lengths))
        ends = np.cumsum(lengths[blocks])
        numbers = np.searchsorted(ends, offsets, side="right")
        samples = np.empty_like(offsets)
        for number in np.unique(numbers).tolist():
            block = int(blocks[number])
            length = int(lengths[blocks[number]])
            within = _permuted(length, (self._seed, epoch, block + 1), 0, length)
            at = numbers == number
            samples[at] = lengths[:block].sum() + within[offsets[at] - (ends[number] - length)]
        return samples


def evenly(chosen: int, total: int, start: int, count: int, deals: Sequence[Deal]) -> Indices:
    """Positions start .. start + count - 1 of `chosen` out of `total` samples, evenly spread, ascending."""
    return np.arange(start, min(start + count, chosen), dtype=np.int64) * total // chosen


# --- deals ------------------------------------------------------------------------------------------------------------


def redealt(deals: Sequence[Deal], size: int, position: int, lanes: int, turn: int) -> tuple[Deal, ...]:
    """Add a deal from `position` on, and drop those that no longer matter. Epochs have `size` samples.

    An epoch starts with the last deal before it. A deal within an epoch divides what is left of it, so every sample is
    still taken once. Dropped are deals of past epochs, and those at or after `position`, of which nothing was taken.
    """
    if lanes == 1:
        turn = 1
    current = [deal for deal in deals if deal.start < position] or [_UNDEALT]
    new = Deal(position, lanes, turn)
    if current[-1][1:] != new[1:]:
        current.append(new)
    return tuple(_since(current, position - position % size))


def _since(deals: list[Deal], begin: int) -> list[Deal]:
    """The deal that the epoch from `begin` on starts with, and the later ones."""
    return deals[max(0, sum(deal.start <= begin for deal in deals) - 1) :]


def _epoch_offsets(positions: Indices, begin: int, size: int, deals: Sequence[Deal]) -> Indices:
    """Map contiguous positions of the epoch from `begin` on to offsets 0 .. size - 1 in its sequence of blocks.

    A deal cuts the sequence into one contiguous range per lane. The next deal in the same epoch does the same with the
    concatenation of what is left of those ranges.

    Example: an epoch of 10 with ``Deal(0, lanes=2, turn=2)``. Lane 0 takes positions 0, 1, 4, 5, 8, 9, at offsets
    0 .. 5; lane 1 takes positions 2, 3, 6, 7, at offsets 6 .. 9. If ``Deal(4, lanes=1, turn=1)`` follows, offsets 0, 1,
    6 and 7 are taken, and positions 4 .. 9 are at offsets 2, 3, 4, 5, 8, 9.
    """
    current = _since([_UNDEALT, *(deal for deal in deals if deal.start <= positions[0])], begin)
    end = begin + size
    leftovers = []  # per superseded deal: the start and the length of what each lane's range has left
    for deal, following in itertools.pairwise(current):
        lanes = np.arange(deal.lanes)
        at_begin, at_following, at_end = (deal.taken(lanes, position) for position in (begin, following.start, end))
        leftovers.append((np.cumsum(at_end - at_begin) - (at_end - at_following), at_end - at_following))
        begin = following.start
    deal = current[-1]
    lanes = np.arange(deal.lanes)
    at_begin = deal.taken(lanes, begin)
    at_end = deal.taken(lanes, end)
    lane = (positions - deal.start) // deal.turn % deal.lanes
    offsets = (np.cumsum(at_end - at_begin) - at_end)[lane] + deal.taken(lane, positions)
    for starts, lengths in reversed(leftovers):
        ends = np.cumsum(lengths)
        ranges = np.searchsorted(ends, offsets, side="right")
        offsets = starts[ranges] + offsets - (ends - lengths)[ranges]
    return offsets


# --- numbers that look random -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _permuted(size: int, key: tuple[int, ...], start: int, stop: int) -> Indices:
    """Part of a permutation of 0 .. size - 1 that the key chooses; any part can be computed alone.

    It is a Feistel network over the smallest power of four that fits, repeated for values outside (cycle walking).
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    rounds = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    values = np.arange(start, stop, dtype=np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        high = values[outside] >> half_bits
        low = values[outside] & mask
        for secret in rounds:
            mixed = (low ^ secret) * GAMMA
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            high, low = low, high ^ ((mixed >> np.uint64(32)) & mask)
        values[outside] = (high << half_bits) | low
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def hashed(numbers: Words) -> Words:
    """Unrelated numbers for neighbouring ones, by splitmix64."""
    return finalised((numbers + np.uint64(1)) * GAMMA)


def finalised(numbers: Words) -> Words:
    """The finaliser of splitmix64: neighbouring words become unrelated ones."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
