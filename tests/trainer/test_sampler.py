"""The order's promises: every sample once an epoch, the same however it is cut, and no two ranks on one sample."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.block_order import BlockOrder
from trainer.data.contract import Fields, Indices
from trainer.data.deals import Deal, epoch_offsets, redealt
from trainer.data.sampler import Order, micro_start, order_for
from trainer.data.shuffle import ShuffledOrder
from trainer.errors import TrainerError

sizes = st.one_of(st.integers(1, 300), st.sampled_from([1437, 8192, 8193, 20_000]))
seeds = st.integers(0, 2**70)
lengths = st.lists(st.one_of(st.integers(0, 30), st.sampled_from([8192, 8200])), min_size=1, max_size=12).filter(any)
orders: st.SearchStrategy[Order] = st.one_of(
    st.builds(ShuffledOrder, sizes, seeds),
    st.builds(lambda blocks, seed: BlockOrder(tuple(blocks), seed), lengths, seeds),
)


class Numbers:
    """A split whose contents do not matter."""

    def __init__(self, size: int, blocks: tuple[int, ...] | None = None) -> None:
        self.blocks = blocks
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, indices: Indices) -> Fields:
        raise NotImplementedError


@given(order=orders, epoch=st.integers(0, 1000))
def test_every_epoch_holds_every_sample_once(order: Order, epoch: int) -> None:
    assert sorted(order.indices(epoch * order.size, order.size).tolist()) == list(range(order.size))


@given(order=orders, start=st.integers(0, 50_000), cuts=st.lists(st.integers(1, 200), max_size=5), again=st.randoms())
def test_samples_depend_on_their_position_alone(
    order: Order, start: int, cuts: list[int], again: random.Random
) -> None:
    whole = order.indices(start, sum(cuts)).tolist()
    places = np.cumsum([0, *cuts])[:-1].tolist()
    shuffled = list(zip(places, cuts, strict=True))
    again.shuffle(shuffled)
    fresh: Order = pickle.loads(pickle.dumps(order))
    for place, count in shuffled:
        assert fresh.indices(start + place, count).tolist() == whole[place : place + count]


def test_epochs_and_seeds_differ_and_look_shuffled() -> None:
    builders: list[Callable[[int], Order]] = [
        lambda seed: ShuffledOrder(1437, seed),
        lambda seed: BlockOrder((437, 1000), seed),
    ]
    for build in builders:
        first = build(0).indices(0, 1437)
        for other in (build(0).indices(1437, 1437), build(1).indices(0, 1437)):
            assert (first == other).mean() < 0.02
        assert (np.diff(first) == 1).mean() < 0.02


def test_runs_of_earlier_versions_go_on_in_their_order() -> None:
    assert ShuffledOrder(12, 7).indices(6, 12).tolist() == [0, 6, 2, 5, 7, 10, 0, 10, 4, 5, 11, 8]
    assert BlockOrder((4, 3, 5), 7).indices(6, 12).tolist() == [10, 9, 0, 3, 2, 1, 7, 8, 10, 9, 11, 2]


def test_an_unblocked_order_mixes_everything() -> None:
    order = ShuffledOrder(1437, 0)
    first, second = order.indices(0, 1437), order.indices(1437, 1437)
    assert abs(np.corrcoef(first, np.arange(1437))[0, 1]) < 0.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


@given(blocks=lengths, seed=seeds, epoch=st.integers(0, 50))
def test_a_block_is_finished_before_the_next_one_begins(blocks: list[int], seed: int, epoch: int) -> None:
    order = BlockOrder(tuple(blocks), seed)
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    taken = block_of[order.indices(epoch * order.size, order.size)]
    visits = taken[np.flatnonzero(np.diff(taken, prepend=-1))].tolist()
    assert sorted(visits) == [number for number, length in enumerate(blocks) if length]


def test_blocks_come_in_another_order_in_another_epoch() -> None:
    order = BlockOrder((10,) * 50, 0)
    block_of = np.repeat(np.arange(50), 10)
    epochs = {tuple(block_of[order.indices(epoch * 500, 500)].tolist()) for epoch in range(5)}
    assert len(epochs) == 5


@given(
    ranks=st.integers(1, 5),
    batch=st.integers(1, 9),
    accum=st.integers(1, 4),
    steps=st.integers(1, 6),
    seed=st.integers(0, 9),
    blocked=st.booleans(),
)
def test_no_sample_is_seen_by_two_ranks(
    ranks: int, batch: int, accum: int, steps: int, seed: int, blocked: bool
) -> None:
    total = ranks * batch * accum * steps
    order: Order = BlockOrder((total // 3, total - total // 3), seed) if blocked else ShuffledOrder(total, seed)
    seen: list[int] = []
    consumed = 0
    for _ in range(steps):
        for micro in range(accum):
            for rank in range(ranks):
                seen += order.indices(micro_start(consumed, micro, rank, ranks, batch), batch).tolist()
        consumed += ranks * batch * accum
    assert sorted(seen) == list(range(total))


@given(
    order=orders,
    ranks=st.integers(1, 6),
    batch=st.integers(1, 9),
    accum=st.integers(1, 4),
    consumed=st.integers(0, 10_000),
)
def test_a_step_is_the_same_samples_whatever_the_number_of_ranks(
    order: Order, ranks: int, batch: int, accum: int, consumed: int
) -> None:
    alone = order.indices(consumed, ranks * batch * accum).tolist()
    joined: list[int] = []
    for micro in range(accum):
        for rank in range(ranks):
            joined += order.indices(micro_start(consumed, micro, rank, ranks, batch), batch).tolist()
    assert joined == alone


def test_the_order_of_a_split_follows_its_blocks() -> None:
    assert order_for(Numbers(9), 3) == ShuffledOrder(9, 3)
    assert isinstance(order_for(Numbers(9, (4, 5)), 3), BlockOrder)
    assert order_for(Numbers(9, (4, 5)), 3).size == 9
    assert order_for(Numbers(9, (4, 5)), 3).indices(0, 0).tolist() == ShuffledOrder(9, 3).indices(0, 0).tolist() == []


def test_a_split_without_samples_is_refused() -> None:
    with pytest.raises(TrainerError, match="no samples to train on"):
        order_for(Numbers(0), 0)


# --- deals ------------------------------------------------------------------------------------------------------------


@given(
    blocks=st.lists(st.one_of(st.integers(0, 30), st.just(300)), min_size=1, max_size=12).filter(any),
    seed=seeds,
    layouts=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=6),
)
def test_each_epoch_holds_every_sample_once_however_readers_and_batches_change(
    blocks: list[int], seed: int, layouts: list[tuple[int, int, int]]
) -> None:
    order = BlockOrder(tuple(blocks), seed)
    deals: tuple[Deal, ...] = ()
    seen: list[int] = []
    position = 0
    for lanes, turn, turns in layouts:
        deals = redealt(deals, order.size, position, lanes, turn)
        seen += order.indices(position, turns * turn, deals).tolist()
        position += turns * turn
    end = -position % order.size
    seen += order.indices(position, end, deals).tolist()
    for epoch in range(len(seen) // order.size):
        assert sorted(seen[epoch * order.size : (epoch + 1) * order.size]) == list(range(order.size))
    # A resumed run knows the last deals alone; and whoever reads a part of it reads the same.
    assert order.indices(position, end, redealt(deals, order.size, position, *layouts[-1][:2])).tolist() == (
        seen[position:] if end else []
    )
    for at in range(position, position + end, max(1, end // 20)):
        assert order.indices(at, 3, deals).tolist()[: position + end - at] == seen[at : at + 3]


def test_one_lane_is_the_order_without_deals() -> None:
    order = BlockOrder((40, 30, 50), 7)
    deals = redealt((), order.size, 0, 1, 16)
    assert deals == ()
    assert order.indices(0, 500, deals).tolist() == order.indices(0, 500).tolist()
    assert redealt((Deal(0, 4, 8),), 120, 64, 1, 16) == (Deal(0, 4, 8), Deal(64, 1, 1))


def test_an_epoch_begins_with_the_last_deal_and_forgets_those_before() -> None:
    deals = redealt((), 100, 0, 4, 8)
    assert deals == (Deal(0, 4, 8),)
    assert redealt(deals, 100, 32, 4, 8) == deals
    deals = redealt(deals, 100, 32, 4, 6)
    assert deals == (Deal(0, 4, 8), Deal(32, 4, 6))
    assert redealt(deals, 100, 98, 2, 6) == (*deals, Deal(98, 2, 6))
    assert redealt(deals, 100, 32 + 24 * 6, 2, 6) == (Deal(32, 4, 6), Deal(176, 2, 6))
    # A batch that did not fit: what it would have been dealt was never taken.
    assert redealt(deals, 100, 32, 4, 3) == (Deal(0, 4, 8), Deal(32, 4, 3))


def test_places_are_dealt_out_as_in_the_example() -> None:
    halves, one = Deal(0, lanes=2, turn=2), Deal(4, lanes=1, turn=1)
    assert epoch_offsets(np.arange(10), 0, 10, (halves,)).tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5]
    assert epoch_offsets(np.arange(4, 10), 0, 10, (halves, one)).tolist() == [2, 3, 4, 5, 8, 9]


@pytest.mark.parametrize(
    ("ranks", "workers", "batch"), [pytest.param(8, 4, 16, marks=pytest.mark.long), (8, 1, 24), (2, 2, 5)]
)
def test_each_reader_needs_blocks_of_its_own(ranks: int, workers: int, batch: int) -> None:
    """All row groups of 400, at most one in ten of them twice, in each of three epochs, the first one resumed."""
    blocks = np.random.default_rng(0).integers(50, 70, 400)
    order, block_of = BlockOrder(tuple(blocks.tolist()), 3), np.repeat(np.arange(400), blocks)
    step = ranks * batch * workers
    deals = redealt((), order.size, 0, ranks * workers, batch)
    decoded: list[set[tuple[int, int]]] = [set(), set(), set()]
    for micro in range(3 * order.size // (ranks * batch)):
        for rank in range(ranks):
            start = micro_start(0, micro, rank, ranks, batch)
            reader = micro % workers * ranks + rank
            if micro == order.size // (2 * step) * workers:
                deals = redealt(deals, order.size, micro * ranks * batch, ranks * workers, batch)
            for place, index in enumerate(order.indices(start, batch, deals).tolist(), start):
                if place < 3 * order.size:
                    decoded[place // order.size].add((reader, int(block_of[index])))
    assert all(400 - 1 <= len(pairs) <= 1.1 * 400 for pairs in decoded), [len(pairs) for pairs in decoded]
