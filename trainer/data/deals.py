"""Deals divide an epoch of blocks into lanes, one lane for each reading process.

An epoch is a sequence of samples: its blocks in shuffled order, one after another. A sample's place in that sequence is
its offset. Positions count in the order in which ranks and their readers take samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.data.contract import Indices


class Deal(NamedTuple):
    """How positions are dealt to readers, round-robin. With one lane positions are offsets.

    Attributes:
        start: the first position of the run that is dealt like this.
        lanes: the number of readers. Each gets a contiguous range of offsets, so readers share hardly any blocks.
        turn: how many positions a reader takes before it is the next one's turn.
    """

    start: int
    lanes: int
    turn: int


def redealt(deals: Sequence[Deal], size: int, position: int, lanes: int, turn: int) -> tuple[Deal, ...]:
    """Add a deal from `position` on, and drop those that no longer matter. Epochs have `size` samples.

    An epoch starts with the last deal before it. A deal within an epoch divides what is left of it, so every sample is
    still taken once. Dropped are deals of past epochs, and those at or after `position`, of which nothing was taken.
    """
    epoch_start = position - position % size
    earlier = [deal for deal in deals if deal.start < position]
    starts_before = sum(deal.start <= epoch_start for deal in earlier)
    kept = tuple(earlier[max(0, starts_before - 1) :])
    new = Deal(position, lanes, turn if lanes > 1 else 1)
    current = kept[-1] if kept else Deal(0, 1, 1)
    is_same = (current.lanes, current.turn) == (new.lanes, new.turn)
    return kept if is_same else (*kept, new)


def epoch_offsets(positions: Indices, begin: int, size: int, deals: Sequence[Deal]) -> Indices:
    """Map positions of one epoch to offsets 0 .. size - 1 in its sequence of blocks.

    A deal cuts the sequence into one contiguous range per lane. The next deal in the same epoch does the same with the
    concatenation of what is left of those ranges.

    Example: an epoch of 10 with ``Deal(0, lanes=2, turn=2)``. Lane 0 takes positions 0, 1, 4, 5, 8, 9, at offsets
    0 .. 5; lane 1 takes positions 2, 3, 6, 7, at offsets 6 .. 9. If ``Deal(4, lanes=1, turn=1)`` follows, offsets 0, 1,
    6 and 7 are taken, and positions 4 .. 9 are at offsets 2, 3, 4, 5, 8, 9.

    Args:
        positions: at least one position of the run; contiguous, and all in one epoch.
        begin: the epoch's first position.
        size: samples in an epoch.
        deals: the result of `redealt`; deals after the first of the positions are ignored.
    """
    starting = [deal for deal in deals if deal.start <= begin][-1:] or [Deal(0, 1, 1)]
    later = [deal for deal in deals if begin < deal.start <= positions[0]]
    end = begin + size
    # Per superseded deal: the start and the length of what each lane's range has left.
    leftovers: list[tuple[Indices, Indices]] = []
    for deal, following in itertools.pairwise([*starting, *later]):
        lanes = np.arange(deal.lanes)
        capacities, taken = (_count_dealt(lanes, until, begin, deal) for until in (end, following.start))
        firsts = np.cumsum(capacities) - capacities
        leftovers.append((firsts + taken, capacities - taken))
        begin = following.start
    deal = [*starting, *later][-1]
    capacities = _count_dealt(np.arange(deal.lanes), end, begin, deal)
    first_turn = (begin - deal.start) // deal.turn
    lane = ((positions - deal.start) // deal.turn - first_turn) % deal.lanes
    offsets = (np.cumsum(capacities) - capacities)[lane] + _count_dealt(lane, positions, begin, deal)
    for starts, lengths in reversed(leftovers):
        ends = np.cumsum(lengths)
        range_numbers = np.searchsorted(ends, offsets, side="right")
        offsets = starts[range_numbers] + offsets - (ends - lengths)[range_numbers]
    return offsets


def _count_dealt(lane: Indices, position: Indices | int, begin: int, deal: Deal) -> Indices:
    """How many of the positions begin .. position - 1 a lane takes; `begin` must be in a turn of lane 0."""
    skipped = (begin - deal.start) % deal.turn
    rounds, rest = np.divmod(position - begin + skipped, deal.lanes * deal.turn)
    dealt: Indices = rounds * deal.turn + np.clip(rest - lane * deal.turn, 0, deal.turn)
    return dealt - np.where(lane == 0, skipped, 0)
