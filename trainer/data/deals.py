"""Deals: an epoch of samples in blocks cut into parts, one for each reader."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.data.contract import Indices


class Deal(NamedTuple):
    """How positions go to readers. One lane is the order without a deal.

    Attributes:
        start: the first position of the run that is dealt like this.
        lanes: how many readers there are; each takes a connected part of an epoch's row of blocks, so that it needs
            hardly a block that another one needs.
        turn: how many positions a reader takes before the next one has its turn.
    """

    start: int
    lanes: int
    turn: int


def redealt(deals: Sequence[Deal], size: int, position: int, lanes: int, turn: int) -> tuple[Deal, ...]:
    """The deals of a run of epochs of `size` samples, with this one from `position` on.

    Each epoch begins with the last deal before it, and a new one deals out what is left of the epoch: every sample is
    still taken once. Deals of epochs that are over are dropped, and so are deals from `position` on: nothing was taken
    by them.
    """
    epoch_begin = position - position % size
    earlier = [deal for deal in deals if deal.start < position]
    begun_before = sum(deal.start <= epoch_begin for deal in earlier)
    kept = tuple(earlier[max(0, begun_before - 1) :])
    new = Deal(position, lanes, turn if lanes > 1 else 1)
    current = kept[-1] if kept else Deal(0, 1, 1)
    is_same = (current.lanes, current.turn) == (new.lanes, new.turn)
    return kept if is_same else (*kept, new)


def places_of(positions: Indices, begin: int, size: int, deals: Sequence[Deal]) -> Indices:
    """The places, 0 .. size - 1, in an epoch's row of blocks that positions of it are at.

    A deal cuts the row into one connected part for each lane. The next deal in the same epoch does the same with a row
    of what those parts have left.

    An epoch of 10 with ``Deal(0, lanes=2, turn=2)``: the positions 0, 1, 4, 5, 8, 9 are lane 0's and have the places
    0 .. 5; the positions 2, 3, 6, 7 are lane 1's and have the places 6 .. 9. If ``Deal(4, lanes=1, turn=1)`` follows,
    the lanes have taken 0, 1 and 6, 7, and the positions 4 .. 9 have the places 2, 3, 4, 5, 8, 9.

    Args:
        positions: connected positions of the run, all in one epoch; at least one.
        begin: the epoch's first position.
        size: samples in an epoch.
        deals: those of `redealt`, up to the first of the positions.
    """
    starting = [deal for deal in deals if deal.start <= begin][-1:] or [Deal(0, 1, 1)]
    later = [deal for deal in deals if begin < deal.start <= positions[0]]
    end = begin + size
    # Of each deal that another one followed: where the rest of each lane's part begins, and how long it is.
    rests: list[tuple[Indices, Indices]] = []
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
