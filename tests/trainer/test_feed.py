"""Batches: what stands in for broken samples, the run's order from any position, and the held-out samples."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from contextlib import closing
from typing import Any

import psutil
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tests.conftest import wait_until
from tests.tables import table
from tests.trainer.splits import Faulty, Rows, Shaky, with_positions
from trainer.config import Settings
from trainer.data.contract import Split
from trainer.data.feed import BatchFeed, HeldOut, Share
from trainer.data.order import Order, evenly
from trainer.data.readers import Fetched, Reader, Request
from trainer.errors import TrainerError

CPU = torch.device("cpu")


# --- one reader -------------------------------------------------------------------------------------------------------


def reader(split: Split, max_broken: int = 16, *, replaces: bool = True) -> Reader:
    """Positions are samples."""
    return Reader(split, functools.partial(evenly, len(split), len(split)), with_positions, max_broken, replaces)


def numbers(fetched: Fetched) -> list[int]:
    if not fetched.fields:
        return []
    rows: list[int] = fetched.fields["number"].tolist()
    assert fetched.fields["row"].tolist() == [[number] * 3 for number in rows]
    return rows


def feed(split: Split, rank: int = 0, ranks: int = 1, **settings: Any) -> closing[BatchFeed]:
    return closing(BatchFeed(split, with_positions, Settings(**settings), Share(rank, ranks, CPU)))


def pids(fields: dict[str, torch.Tensor]) -> set[int]:
    return set(fields["pid"].tolist())


def workers() -> list[str]:
    """Children of this process that were started by a fork server; the ranks of other tests were not."""
    return [child.name for child in multiprocessing.active_children() if child.name.startswith("ForkServer")]


def held_out(split: Split, rank: int = 0, ranks: int = 1, **settings: Any) -> HeldOut:
    return HeldOut(split, with_positions, Settings(**settings), Share(rank, ranks, CPU))


def test_an_error_of_the_disk_that_passes_costs_no_sample() -> None:
    fetched = reader(Shaky(2), 0).read(Request(2, 3))
    assert numbers(fetched) == [2, 3, 4]
    assert not fetched.broken
    assert numbers(reader(Shaky(3)).read(Request(2, 3))) == [2, 4, 4]


def test_a_broken_sample_is_replaced_by_the_next_readable_one_and_tried_once() -> None:
    split = Rows(20, broken=(7, 8, 19))
    rows_reader = reader(split, 3)
    batch = rows_reader.read(Request(6, 4))
    assert numbers(batch) == [6, 9, 9, 9]
    assert batch.fields["position"].tolist() == [6, 7, 8, 9]
    assert sorted(batch.broken) == [7, 8]
    assert "row 8" in batch.broken[8]
    assert "it is torn" in batch.broken[8]
    split.reads.clear()
    again = rows_reader.read(Request(8, 2))
    assert (numbers(again), sorted(again.broken), split.reads) == ([9, 9], [8], [[9, 9]])


@table("replaces", [True, False])
def test_more_broken_samples_than_allowed_are_an_error(replaces: bool) -> None:
    rows_reader = reader(Rows(20, broken=(2, 5, 7)), 2, replaces=replaces)
    rows_reader.read(Request(1, 5))
    with pytest.raises(TrainerError, match=r"^sample 7 \(row 7\) cannot be read: .* more than 2: .*--max-broken-"):
        rows_reader.read(Request(6, 2))
    with pytest.raises(TrainerError, match="none of the 3 samples"):
        reader(Rows(3, broken=(0, 1, 2))).read(Request(0, 1))


@given(
    broken=st.sets(st.integers(0, 15), max_size=12),
    batches=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 6)), max_size=6),
    replaces=st.booleans(),
)
def test_what_is_read_depends_on_nothing_but_the_data(
    broken: set[int], batches: list[tuple[int, int]], replaces: bool
) -> None:
    rows_reader = reader(Rows(16, tuple(broken)), replaces=replaces)

    def stand_in(index: int) -> int:
        while index in broken:
            index = (index + 1) % 16
        return index

    for start, count in batches:
        positions = range(start, min(16, start + count))
        good = [index for index in positions if replaces or index not in broken]
        assert numbers(rows_reader.read(Request(start, len(positions)))) == [stand_in(index) for index in good]


def test_a_reader_follows_the_order_transforms_by_position_and_tells_what_comes_next() -> None:
    split = Rows(12, blocks=(4, 8))
    order = Order(split, 5)
    fetched, resumed = (
        Reader(split, order.indices, with_positions, 0).read(Request(7, 6, stride)) for stride in (0, 6)
    )
    assert numbers(fetched) == order.indices(7, 6).tolist()
    assert fetched.fields["position"].tolist() == [7, 8, 9, 10, 11, 12]
    assert torch.equal(resumed.fields["drawn"], fetched.fields["drawn"])
    assert split.expected == [order.indices(13, 6).tolist()]


# --- training batches -------------------------------------------------------------------------------------------------


@table(
    ("rank", "ranks", "at", "batch"),
    [(0, 1, 0, 4), (0, 2, 0, 3), (1, 2, 0, 3), (0, 1, 40, 8), (2, 3, 46, 4)],
)
def test_ranks_take_turns_over_epochs_from_anywhere_with_any_batch(rank: int, ranks: int, at: int, batch: int) -> None:
    split = Rows(10)
    with feed(split, rank, ranks) as stream:
        for begin in (at, at, 2 * at):  # the second goes back
            stream.seek(begin, batch)
            batches = [stream.next()["number"].tolist() for _ in range(5)]
            starts = [begin + (micro * ranks + rank) * batch for micro in range(5)]
            assert batches == [Order(split, 0).indices(start, batch).tolist() for start in starts]


def test_workers_give_what_this_process_would_and_stay_for_another_position() -> None:
    split = Rows(50, broken=(3, 30))
    before = torch.get_rng_state()
    with feed(split) as here, feed(split, num_workers=2) as parallel:
        here.seek(8, 4)
        parallel.seek(8, 4)
        workers: set[int] = set()
        for _ in range(23):
            inline_batch = here.next()
            batch = parallel.next()
            workers |= set(batch.pop("pid").tolist())
            assert all(torch.equal(inline_batch[name], values) for name, values in batch.items())
        assert len(workers) == 2
        assert os.getpid() not in workers
        # Both workers came upon both broken samples, in two epochs; that is still two samples, told once.
        assert len(parallel.skipped()) == 2
        assert parallel.skipped() == []
        parallel.seek(4, 3)
        again = [parallel.next() for _ in range(3)]
        assert [fields["position"].tolist() for fields in again] == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
        assert set().union(*map(pids, again)) == workers
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), 120)
    assert torch.equal(torch.get_rng_state(), before)


def test_signals_to_the_whole_group_are_for_the_rank_which_still_needs_data() -> None:
    with feed(Rows(50), num_workers=1) as stream:
        stream.seek(0, 4)
        (worker,) = pids(stream.next())
        stream.seek(4, 4)  # where it is, so that nothing needs to begin anew
        server = psutil.Process(worker).ppid()
        os.kill(server, signal.SIGTERM)
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGINT)
        batch = stream.next()
        assert batch["position"].tolist() == [4, 5, 6, 7]
        assert pids(batch) == {worker}
        with feed(Rows(50), num_workers=1) as another:
            another.seek(0, 4)
            assert psutil.Process(pids(another.next()).pop()).ppid() == server
    assert workers() == []


@pytest.mark.parametrize(
    ("split", "kind", "message"),
    [
        (Faulty(deadly=True), TrainerError, r"reading process \(pid \d+\) ended with exit code -9: .*--num-workers"),
        (Rows(8, broken=tuple(range(8))), TrainerError, r"^sample \d \(row \d\) cannot be read: .* more than 3"),
        (Faulty(deadly=False), RuntimeError, "a mistake in the program"),
    ],
    ids=["killed", "broken data", "a mistake"],
)
def test_what_goes_wrong_in_a_worker_is_said_here(
    split: Split, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch looks for dead workers when nothing came for 5 s.
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))
    with feed(split, num_workers=1, max_broken_samples=3) as stream, pytest.raises(kind, match=message) as caught:
        stream.seek(0, 8)
        stream.next()
    assert kind is not TrainerError or "\n" not in str(caught.value)
    assert workers() == []


# --- held-out samples -------------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 60),
    broken=st.sets(st.integers(0, 30), max_size=3),
    ranks=st.integers(1, 5),
    batch=st.integers(1, 20),
    sample_limit=st.integers(0, 80),
    blocked=st.booleans(),
)
def test_all_ranks_together_have_every_held_out_sample_once(
    size: int, broken: set[int], ranks: int, batch: int, sample_limit: int, blocked: bool
) -> None:
    assume(len(broken & set(range(size))) < size)
    blocks = (size,) if blocked else None
    split = Rows(size, tuple(broken), blocks=blocks)
    shares = [held_out(split, rank, ranks, validate_samples=sample_limit) for rank in range(ranks)]
    batches = [[fields["number"].tolist() for fields in share.batches(batch)] for share in shares]
    numbers_read = [number for mine in batches for numbers in mine for number in numbers]
    assert len(set(map(len, batches))) == 1  # a forward pass may be something that all ranks do together
    assert max(len(numbers) for mine in batches for numbers in mine) <= batch
    assert numbers_read == sorted(set(numbers_read) - broken)
    if not sample_limit or sample_limit >= size:
        assert numbers_read == sorted(set(range(size)) - broken)
    elif not broken:
        assert len(numbers_read) == sample_limit
        assert not blocked or numbers_read == list(range(sample_limit))


def test_what_is_left_out_is_reported_and_limited() -> None:
    share = held_out(Rows(20, broken=(5, 6)), max_broken_samples=2, num_workers=2)
    for _ in range(2):
        batches = list(share.batches(8))
        assert sum(len(fields["number"]) for fields in batches) == 18
        assert not set().union(*map(pids, batches)) & {os.getpid()}
        assert workers() == []
    assert len(share.skipped()) == 2
    with pytest.raises(TrainerError, match="than 1"):
        list(held_out(Rows(20, broken=(5, 6)), max_broken_samples=1).batches(8))
    with pytest.raises(TrainerError, match="no held-out samples"):
        held_out(Rows(0))
