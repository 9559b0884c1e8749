"""Which samples a run takes, and when.

No state is held: the samples at any position of the run are a function of (seed, position). A run's position is the
number of samples that all ranks together have consumed, so it survives another batch size or number of ranks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices, Split
from trainer.errors import TrainerError

_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_CHUNK = 8192  # positions whose order is computed together
_MASK = 2**64 - 1


class Deal(NamedTuple):
    """From position `start` on, turns of `turn` positions go to `lanes` readers, one after the other.

    Of a split in blocks each lane takes a connected part, so that its reader needs hardly a block that another one
    needs. One lane is the order without a deal.
    """

    start: int
    lanes: int
    turn: int


def redealt(deals: Sequence[Deal], size: int, position: int, lanes: int, turn: int) -> tuple[Deal, ...]:
    """The deals of a run of epochs of `size` samples, with this one from `position` on.

    Each epoch begins with the last deal there was, and a new one deals out what is left of the epoch: every sample is
    still taken once. Deals of epochs that are over are left out.
    """
    begin = position - position % size
    earlier = [deal for deal in deals if deal.start < position]
    over = sum(deal.start <= begin for deal in earlier)
    kept = tuple(earlier[max(0, over - 1) :])
    new = (lanes, turn if lanes > 1 else 1)
    return kept if (kept[-1][1:] if kept else (1, 1)) == new else (*kept, Deal(position, *new))


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
    return Sampler(len(split), seed) if blocks is None else BlockSampler(blocks, seed)


def micro_start(consumed: int, micro: int, rank: int, ranks: int, batch_size: int) -> int:
    """Where a rank's micro batch starts: micro batches follow one another, each dealt out to the ranks in order.

    So a step of R ranks with batch B takes the very samples of one process with batch R * B.
    """
    return consumed + (micro * ranks + rank) * batch_size


@dataclass(frozen=True)
class Sampler:
    """Every sample may be anywhere; the order is computed for just the positions that are asked for.

    It is a keyed permutation: a Feistel network over the smallest power of four that fits, repeated for values outside
    the range (cycle walking). Any part of it can be computed alone, whatever the size of the data.
    """

    size: int
    seed: int

    def indices(self, start: int, count: int, deals: tuple[Deal, ...] = ()) -> Indices:
        parts = []
        while count > 0:
            epoch, place = divmod(start, self.size)
            chunk, offset = divmod(place, _CHUNK)
            part = _ordered_chunk(self.size, self.seed, epoch, chunk)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class BlockSampler:
    """Blocks in a new order, and the samples within each block in a new order; blocks are not mixed.

    So whoever reads needs one block at a time, two where a batch reaches over the end of one. That is true of each
    reader of a deal: an epoch's blocks in a row are cut into one part per lane, and no more blocks than cuts are read
    twice.
    """

    def __init__(self, lengths: tuple[int, ...], seed: int) -> None:
        self.size = sum(lengths)
        self._seed = seed
        self._lengths = np.array(lengths, dtype=np.int64)
        self._first = np.cumsum(self._lengths) - self._lengths  # each block's first sample
        self._epochs: dict[int, tuple[Indices, Indices]] = {}

    def indices(self, start: int, count: int, deals: tuple[Deal, ...] = ()) -> Indices:
        parts = [np.empty(0, dtype=np.int64)]
        while count > 0:
            epoch, place = divmod(start, self.size)
            here = min(count, self.size - place)
            places = _dealt(np.arange(start, start + here), epoch * self.size, self.size, deals)
            cuts = np.flatnonzero(np.diff(places) != 1) + 1
            for run in np.split(places, cuts):
                parts += self._connected(epoch, int(run[0]), len(run))
            start, count = start + here, count - here
        return np.concatenate(parts)

    def _connected(self, epoch: int, place: int, count: int) -> list[Indices]:
        """The samples of connected places of an epoch, whose blocks lie in a row."""
        parts = []
        blocks, ends = self._blocks(epoch)
        while count > 0:
            turn = int(np.searchsorted(ends, place, side="right"))
            block, length = int(blocks[turn]), int(self._lengths[blocks[turn]])
            offset = place - (int(ends[turn]) - length)
            rows = Sampler(length, _mix(_mix(self._seed) + block + 1))
            part = rows.indices(epoch * length + offset, min(count, length - offset)) + self._first[block]
            parts.append(part)
            place, count = place + len(part), count - len(part)
        return parts

    def _blocks(self, epoch: int) -> tuple[Indices, Indices]:
        """The blocks in the order of an epoch, and the place in the epoch where each of them ends."""
        if epoch not in self._epochs:
            blocks = Sampler(len(self._lengths), self._seed).indices(epoch * len(self._lengths), len(self._lengths))
            # Reading ahead looks at the epoch that follows, so two are in use at the turn from one to the next.
            recent = dict(list(self._epochs.items())[-1:])
            self._epochs = recent | {epoch: (blocks, np.cumsum(self._lengths[blocks]))}
        return self._epochs[epoch]


def _dealt(positions: Indices, begin: int, size: int, deals: tuple[Deal, ...]) -> Indices:
    """The places 0 .. size - 1 in an epoch's row of blocks that its positions stand for; the epoch starts at `begin`.

    A deal cuts the row into one connected part for each lane. The next deal in the same epoch does the same with a row
    of what those parts have left.
    """
    if not len(positions):
        return positions
    starting = [deal for deal in deals if deal.start <= begin][-1:] or [Deal(0, 1, 1)]
    later = [deal for deal in deals if begin < deal.start <= positions[0]]
    end = begin + size
    rests: list[tuple[Indices, Indices]] = []  # of each deal that another one followed: where what is left lies
    for deal, following in itertools.pairwise([*starting, *later]):
        lanes = np.arange(deal.lanes)
        capacities, taken = (_taken(lanes, at, begin, deal) for at in (end, following.start))
        firsts = np.cumsum(capacities) - capacities
        rests.append((firsts + taken, capacities - taken))
        begin = following.start
    deal = [*starting, *later][-1]
    capacities = _taken(np.arange(deal.lanes), end, begin, deal)
    first_turn = (begin - deal.start) // deal.turn
    lane = ((positions - deal.start) // deal.turn - first_turn) % deal.lanes
    places = (np.cumsum(capacities) - capacities)[lane] + _taken(lane, positions, begin, deal)
    for first, left in reversed(rests):
        ends = np.cumsum(left)
        piece = np.searchsorted(ends, places, side="right")
        places = first[piece] + places - (ends - left)[piece]
    return places


def _taken(lane: Indices, position: Indices | int, begin: int, deal: Deal) -> Indices:
    """How many of the positions from `begin` to before `position` are those of a lane; `begin` is in turn of lane 0."""
    skipped = (begin - deal.start) % deal.turn
    rounds, rest = np.divmod(position - begin + skipped, deal.lanes * deal.turn)
    taken: Indices = rounds * deal.turn + np.clip(rest - lane * deal.turn, 0, deal.turn)
    return taken - np.where(lane == 0, skipped, 0)


@functools.lru_cache(maxsize=8)
def _ordered_chunk(size: int, seed: int, epoch: int, chunk: int) -> Indices:
    """The samples at positions chunk * _CHUNK and following of an epoch, up to the end of chunk or epoch."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [_mix(_mix(seed) ^ _mix(epoch * _ROUNDS + number + 1)) for number in range(_ROUNDS)]
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


def _mix(value: int) -> int:
    """The finaliser of splitmix64: neighbouring values become unrelated ones."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
