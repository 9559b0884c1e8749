"""Reading: what stands in for a broken sample, what is told about it, and what is read ahead."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.texts import mentions
from tests.trainer.splits import Rows, Shaky, with_positions
from trainer.data.contract import Split
from trainer.data.order import Order, evenly
from trainer.data.reading import Fetched, Reader, Request
from trainer.errors import TrainerError


def reader(split: Split, max_broken: int = 16, *, replace: bool = True) -> Reader:
    """Positions are samples."""
    in_order = functools.partial(evenly, len(split), len(split))
    return Reader(split, in_order, with_positions, max_broken=max_broken, replace=replace)


def numbers(fetched: Fetched) -> list[int]:
    if not fetched.fields:
        return []
    found: list[int] = fetched.fields["number"].tolist()
    assert fetched.fields["row"].tolist() == [[number] * 3 for number in found]
    return found


def test_an_error_of_the_disk_that_passes_costs_no_sample() -> None:
    fetched = reader(Shaky(2), 0).read(Request(2, 3))
    assert numbers(fetched) == [2, 3, 4] and not fetched.broken
    assert numbers(reader(Shaky(3)).read(Request(2, 3))) == [2, 4, 4]


def test_a_broken_sample_is_replaced_by_the_next_readable_one_and_tried_once() -> None:
    split = Rows(20, broken=(7, 8, 19))
    one = reader(split, 3)
    taken = one.read(Request(6, 4))
    assert numbers(taken) == [6, 9, 9, 9]
    assert taken.fields["position"].tolist() == [6, 7, 8, 9]
    assert mentions(taken.broken[8], "sample 8 (row 8)", "it is torn") and sorted(taken.broken) == [7, 8]
    assert numbers(one.read(Request(18, 2))) == [18, 0]
    split.reads.clear()
    again = one.read(Request(8, 2))
    assert (numbers(again), sorted(again.broken), split.reads) == ([9, 9], [8], [[9, 9]])
    assert one.read(Request(1, 2)).broken == {}


@table("replace", [True, False])
def test_more_broken_samples_than_allowed_are_an_error(replace: bool) -> None:
    one = reader(Rows(20, broken=(2, 5, 7)), 2, replace=replace)
    one.read(Request(1, 5))
    with pytest.raises(
        TrainerError, match=r"^sample 7 \(row 7\) cannot be read: .* more than 2: repair .*--max-broken-"
    ):
        one.read(Request(6, 2))
    with pytest.raises(TrainerError, match="none of the 3 samples"):
        reader(Rows(3, broken=(0, 1, 2))).read(Request(0, 1))


@given(
    broken=st.sets(st.integers(0, 15), max_size=12),
    batches=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 6)), max_size=6),
    replace=st.booleans(),
)
def test_what_is_read_depends_on_nothing_but_the_data(
    broken: set[int], batches: list[tuple[int, int]], replace: bool
) -> None:
    one = reader(Rows(16, tuple(broken)), replace=replace)

    def stand_in(index: int) -> int:
        while index in broken:
            index = (index + 1) % 16
        return index

    for start, count in batches:
        asked = range(start, min(16, start + count))
        good = [index for index in asked if replace or index not in broken]
        assert numbers(one.read(Request(start, len(asked)))) == [stand_in(index) for index in good]


def test_a_reader_follows_the_order_transforms_by_position_and_tells_what_comes_next() -> None:
    split = Rows(12, blocks=(4, 8))
    order = Order(split, 5)
    fetched, resumed = (
        Reader(split, order.indices, with_positions, max_broken=0).read(Request(7, 6, next_start))
        for next_start in (None, 13)
    )
    assert numbers(fetched) == order.indices(7, 6).tolist()
    assert fetched.fields["position"].tolist() == [7, 8, 9, 10, 11, 12]
    assert torch.equal(resumed.fields["drawn"], fetched.fields["drawn"])
    assert split.expected == [order.indices(13, 6).tolist()]
