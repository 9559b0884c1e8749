"""The order's promises: every sample once an epoch, the same however it is cut, and no two ranks on one sample."""

from __future__ import annotations

import pickle
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.splits import Rows
from trainer.data.deals import Deal, epoch_offsets, redealt
from trainer.data.order import Order

seeds = st.integers(0, 2**70)
lengths = st.lists(st.one_of(st.integers(0, 30), st.sampled_from([300, 8200])), min_size=1, max_size=12).filter(any)
sizes = st.one_of(st.integers(1, 300), st.sampled_from([1437, 8192, 8193, 20_000]))
layouts = st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(1, 30))  # lanes, turn, turns


def in_blocks(blocks: list[int], seed: int) -> Order:
    return Order(Rows(sum(blocks), blocks=tuple(blocks)), seed)


orders = st.one_of(
    st.builds(lambda size, seed: Order(Rows(size), seed), sizes, seeds), st.builds(in_blocks, lengths, seeds)
)


@given(order=orders, epoch=st.integers(0, 1000))
def test_every_epoch_holds_every_sample_once(order: Order, epoch: int) -> None:
    assert sorted(order.indices(epoch * order.size, order.size).tolist()) == list(range(order.size))


@given(order=orders, start=st.integers(0, 50_000), cuts=st.lists(st.integers(1, 200), max_size=5), again=st.randoms())
def test_samples_depend_on_their_position_alone(
    order: Order, start: int, cuts: list[int], again: random.Random
) -> None:
    whole = order.indices(start, sum(cuts)).tolist()
    shuffled = list(zip(np.cumsum([0, *cuts])[:-1].tolist(), cuts, strict=True))
    again.shuffle(shuffled)
    fresh: Order = pickle.loads(pickle.dumps(order))
    for place, count in shuffled:
        assert fresh.indices(start + place, count).tolist() == whole[place : place + count]


@given(blocks=lengths, seed=seeds, epoch=st.integers(0, 50))
def test_a_block_is_finished_before_the_next_one_begins(blocks: list[int], seed: int, epoch: int) -> None:
    order = in_blocks(blocks, seed)
    parts = np.repeat(np.arange(len(blocks)), blocks)[order.indices(epoch * order.size, order.size)]
    visits = parts[np.flatnonzero(np.diff(parts, prepend=-1))].tolist()
    assert sorted(visits) == [number for number, length in enumerate(blocks) if length]


@given(blocks=lengths, seed=seeds, dealt=st.lists(layouts, min_size=1, max_size=6))
def test_each_epoch_holds_every_sample_once_however_readers_and_batches_change(
    blocks: list[int], seed: int, dealt: list[tuple[int, int, int]]
) -> None:
    order = in_blocks(blocks, seed)
    deals: tuple[Deal, ...] = ()
    indices: list[int] = []
    position = 0
    for lanes, turn, turns in dealt:
        deals = redealt(deals, order.size, position, lanes, turn)
        indices += order.indices(position, turns * turn, deals).tolist()
        position += turns * turn
    end = -position % order.size
    indices += order.indices(position, end, deals).tolist()
    for epoch in range(len(indices) // order.size):
        assert sorted(indices[epoch * order.size : (epoch + 1) * order.size]) == list(range(order.size))
    # A resumed run knows the last deals only, and a reader of a part gets the same indices.
    assert redealt(deals, order.size, position, *dealt[-1][:2])[-1] == deals[-1]
    for at in range(position, position + end, max(1, end // 20)):
        resumed = redealt(deals, order.size, position, *dealt[-1][:2])
        assert order.indices(at, 3, resumed).tolist()[: position + end - at] == indices[at : at + 3]


def test_each_reader_of_a_deal_has_blocks_of_its_own() -> None:
    order = in_blocks([100] * 8, 3)
    deals = redealt((), order.size, 0, 4, 8)
    for epoch in range(2):
        for lane in range(4):
            turns = range(lane, 100, 4)
            indices = np.concatenate([order.indices(epoch * order.size + turn * 8, 8, deals) for turn in turns])
            assert len(set((indices // 100).tolist())) == 2


def test_the_example_of_two_readers_and_then_one() -> None:
    two = Deal(0, readers=2, turn=2)
    assert epoch_offsets(np.arange(10), 0, 10, [two]).tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5]
    assert epoch_offsets(np.arange(4, 10), 0, 10, [two, Deal(4, readers=1, turn=1)]).tolist() == [2, 3, 4, 5, 8, 9]


def test_an_epoch_begins_with_the_last_deal_and_forgets_those_before() -> None:
    deals = redealt((), 100, 0, 4, 8)
    assert deals == (Deal(0, 4, 8),)
    assert redealt(deals, 100, 32, 4, 8) == deals
    deals = redealt(deals, 100, 32, 4, 6)
    assert deals == (Deal(0, 4, 8), Deal(32, 4, 6))
    assert redealt(deals, 100, 98, 2, 6) == (*deals, Deal(98, 2, 6))
    assert redealt(deals, 100, 32 + 24 * 6, 2, 6) == (Deal(32, 4, 6), Deal(176, 2, 6))
    # The batch did not fit into memory, so none of its samples count as taken.
    assert redealt(deals, 100, 32, 4, 3) == (Deal(0, 4, 8), Deal(32, 4, 3))
