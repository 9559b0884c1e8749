"""Reading: what is kept, what stands in for a broken sample, and what is told about it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.texts import mentions
from tests.trainer.splits import Rows, Telling, as_they_are, with_positions
from trainer.data.contract import BrokenSample, Fields, Indices
from trainer.data.order import Order
from trainer.data.reading import Fetched, Reader, Request
from trainer.data.samples import SampleCache, Samples
from trainer.errors import TrainerError

SAMPLE_BYTES = 1000 + 80  # one tensor of 80 bytes, and what keeping it takes


def sample(number: int) -> Fields:
    return {"x": torch.full((10,), number)}


def take(samples: Samples, *indices: int) -> list[int]:
    fields = samples.take(np.array(indices, dtype=np.int64)).fields
    if not fields:
        return []
    numbers: list[int] = fields["number"].tolist()
    assert fields["row"].tolist() == [[number] * 3 for number in numbers]
    return numbers


# --- the cache --------------------------------------------------------------------------------------------------------


@given(asked=st.lists(st.integers(0, 20), max_size=60), limit=st.integers(1, 8 * SAMPLE_BYTES))
def test_a_cache_never_exceeds_its_bound_and_returns_what_was_put(asked: list[int], limit: int) -> None:
    cache = SampleCache(limit)
    for number in asked:
        kept = cache.get(number)
        if kept is None:
            cache.put(number, sample(number))
            cache.put(number, sample(number))
        else:
            assert kept["x"].tolist() == [number] * 10
        assert sum(other in cache for other in range(21)) * SAMPLE_BYTES <= limit
    assert cache.hits + cache.misses == len(asked)


class Shaky(Rows):
    """Rows on a disk that fails a few times."""

    def __init__(self, failures: int, number: int) -> None:
        super().__init__(10)
        self.failures = failures
        self.number = number

    def read(self, indices: Indices) -> Fields:
        if self.failures and 3 in indices:
            self.failures -= 1
            raise BrokenSample(3, "row 3", "the disk") from OSError(self.number, os.strerror(self.number))
        return super().read(indices)


@table("number", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_disk_that_passes_costs_no_sample(number: int) -> None:
    samples = Samples(Shaky(4, number), max_broken=0)
    assert take(samples, 2, 3, 4) == [2, 3, 4]


# --- samples ----------------------------------------------------------------------------------------------------------


def test_a_broken_sample_is_replaced_by_the_next_readable_one_and_tried_once() -> None:
    split = Rows(20, broken=(7, 8, 19))
    samples = Samples(split, max_broken=3)
    taken = samples.take(np.array([3, 7, 19, 9]))
    assert taken.fields["number"].tolist() == [3, 9, 0, 9]
    assert taken.rows.tolist() == [0, 1, 2, 3]
    assert sorted(taken.broken) == [7, 8, 19]
    assert mentions(taken.broken[8], "sample 8 (row 8)", "it is torn")
    split.reads.clear()
    again = samples.take(np.array([8, 19, 5]))
    assert again.fields["number"].tolist() == [9, 0, 5]
    assert sorted(again.broken) == [8, 19]
    assert split.reads == [[9, 0, 5]]
    assert samples.take(np.array([1, 2])).broken == {}


def test_broken_samples_are_left_out_where_nothing_may_stand_in() -> None:
    samples = Samples(Rows(20, broken=(7, 8)), max_broken=2, replace=False)
    for _ in range(2):
        taken = samples.take(np.array([6, 7, 8, 9]))
        assert taken.fields["number"].tolist() == [6, 9]
        assert taken.rows.tolist() == [0, 3]
        assert sorted(taken.broken) == [7, 8]
    assert take(samples, 7, 8) == []
    assert take(samples) == []


@table("replace", [True, False])
def test_more_broken_samples_than_allowed_are_an_error(replace: bool) -> None:
    samples = Samples(Rows(20, broken=(2, 5, 7)), max_broken=2, replace=replace)
    take(samples, 1, 2, 5)
    with pytest.raises(
        TrainerError, match=r"^sample 7 \(row 7\) cannot be read: .* more than 2: repair .*--max-broken-"
    ):
        take(samples, 6, 7)


def test_with_a_cache_only_what_is_missing_is_read_in_one_call() -> None:
    split = Rows(50)
    samples = Samples(split, max_broken=0, cache_bytes=100_000)
    assert take(samples, 1, 2, 3) == [1, 2, 3]
    assert take(samples, 3, 9, 1, 8, 9) == [3, 9, 1, 8, 9]
    assert take(samples, 8, 2) == [8, 2]
    assert split.reads == [[1, 2, 3], [9, 8]]
    assert samples.cache is not None
    assert (samples.cache.hits, samples.cache.misses) == (4, 6)
    assert samples.uncached(np.array([1, 5, 9, 6])).tolist() == [5, 6]


@given(
    broken=st.sets(st.integers(0, 15), max_size=12),
    batches=st.lists(st.lists(st.integers(0, 15), max_size=6), max_size=6),
    cache_bytes=st.sampled_from([0, 5000, 100_000]),
    replace=st.booleans(),
)
def test_what_is_read_depends_on_nothing_but_the_data(
    broken: set[int], batches: list[list[int]], cache_bytes: int, replace: bool
) -> None:
    samples = Samples(Rows(16, tuple(broken)), max_broken=16, cache_bytes=cache_bytes, replace=replace)

    def stand_in(index: int) -> int:
        while index in broken:
            index = (index + 1) % 16
        return index

    for batch in batches:
        good = [index for index in batch if replace or index not in broken]
        assert take(samples, *batch) == [stand_in(index) for index in good]


# --- the reader -------------------------------------------------------------------------------------------------------


def read(reader: Reader, start: int, count: int, next_start: int | None = None) -> Fetched:
    return reader.read(Request(start, count, next_start))


def test_a_reader_reads_the_order_and_transforms_by_position() -> None:
    order = Order(Rows(10), 5)
    asked = order.indices(7, 6).tolist()
    split = Rows(10, broken=(asked[2],))
    reader = Reader(Samples(split, max_broken=1), order.indices, with_positions)
    fetched = read(reader, 7, 6)
    expected = [(index + 1) % 10 if index == asked[2] else index for index in asked]
    assert fetched.fields["number"].tolist() == expected
    assert fetched.fields["position"].tolist() == [7, 8, 9, 10, 11, 12]
    assert (fetched.samples, list(fetched.broken)) == (6, [asked[2]])
    assert (fetched.cache_hits, fetched.cache_misses) == (0, 0)
    assert fetched.read_seconds > 0
    resumed = Reader(Samples(split, max_broken=1), order.indices, with_positions)
    assert torch.equal(read(resumed, 7, 6).fields["drawn"], fetched.fields["drawn"])


@table("cache_bytes", [0, 100_000])
def test_a_split_is_told_what_comes_next(cache_bytes: int) -> None:
    split = Telling(12, blocks=(4, 8))
    order = Order(split, 1)
    reader = Reader(Samples(split, max_broken=0, cache_bytes=cache_bytes), order.indices, as_they_are)
    read(reader, 0, 5, next_start=10)
    read(reader, 10, 5, next_start=None)
    assert split.expected == [order.indices(10, 5).tolist()]
    read(reader, 20, 5, next_start=0)  # read before
    assert split.expected[1:] == ([] if cache_bytes else [order.indices(0, 5).tolist()])
