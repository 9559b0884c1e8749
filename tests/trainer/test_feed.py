"""The stream of batches: the run's order from any position, whoever reads it; and the held-out samples, shared out."""

from __future__ import annotations

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
from tests.trainer.splits import Deadly, Faulty, Rows, with_positions
from trainer.config import Settings
from trainer.data.contract import Split
from trainer.data.feed import BatchFeed, HeldOut
from trainer.data.order import Order, micro_start
from trainer.errors import TrainerError

CPU = torch.device("cpu")


def feed(split: Split, rank: int = 0, ranks: int = 1, **settings: Any) -> closing[BatchFeed]:
    return closing(BatchFeed(split, with_positions, Settings(**settings), rank=rank, ranks=ranks, device=CPU))


def taken(stream: BatchFeed, batch: int, batches: int, at: int = 0) -> list[list[int]]:
    """The samples of the next batches from a position on."""
    stream.seek(at, batch)
    return [stream.next()["number"].tolist() for _ in range(batches)]


def ordered(split: Split, batch: int, batches: int, rank: int = 0, ranks: int = 1, at: int = 0) -> list[list[int]]:
    """What the run's order has there for a rank."""
    starts = (micro_start(at, micro, rank, ranks, batch) for micro in range(batches))
    return [Order(split, 0).indices(start, batch).tolist() for start in starts]


def pids(fields: dict[str, torch.Tensor]) -> set[int]:
    return set(fields["pid"].tolist())


def workers() -> list[str]:
    """Children of this process that were started by a fork server; the ranks of other tests were not."""
    return [child.name for child in multiprocessing.active_children() if child.name.startswith("ForkServer")]


# --- training batches -------------------------------------------------------------------------------------------------


def test_two_ranks_take_turns_over_epochs() -> None:
    for rank in range(2):
        with feed(Rows(10), rank, 2) as stream:
            assert taken(stream, 3, 5) == ordered(Rows(10), 3, 5, rank, 2)


def test_seeking_goes_anywhere_with_any_batch_size() -> None:
    split = Rows(100)
    with feed(split) as stream:
        assert taken(stream, 8, 2, at=40) == ordered(split, 8, 2, at=40)
        assert taken(stream, 4, 4, at=40) == ordered(split, 4, 4, at=40)  # the batch did not fit: half of it
        stream.seek(0, 4)
        assert stream.next()["position"].tolist() == [0, 1, 2, 3]


def test_broken_samples_are_told_once() -> None:
    with feed(Rows(20, broken=(5, 6))) as stream:
        stream.seek(0, 20)
        stream.next()
        assert {line.split(" cannot")[0] for line in stream.skipped()} == {"sample 5 (row 5)", "sample 6 (row 6)"}
        stream.next()
        assert stream.skipped() == []


# --- reading processes ------------------------------------------------------------------------------------------------


def test_workers_give_what_this_process_would_and_stay_for_another_position() -> None:
    split = Rows(50, broken=(3, 30))
    before = torch.get_rng_state()
    with feed(split) as here, feed(split, num_workers=2) as there:
        here.seek(8, 4)
        there.seek(8, 4)
        seen: set[int] = set()
        for _ in range(23):
            one, other = here.next(), there.next()
            seen |= set(other.pop("pid").tolist())
            assert all(torch.equal(one[name], values) for name, values in other.items())
        assert len(seen) == 2 and os.getpid() not in seen
        # Both workers came upon both broken samples, in two epochs; that is still two samples.
        assert len(there.skipped()) == 2
        there.seek(4, 3)
        again = [there.next() for _ in range(3)]
        assert [fields["position"].tolist() for fields in again] == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
        assert set().union(*map(pids, again)) == seen
    wait_until(lambda: not any(map(psutil.pid_exists, seen)), 120)
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
        assert batch["position"].tolist() == [4, 5, 6, 7] and pids(batch) == {worker}
        with feed(Rows(50), num_workers=1) as another:
            another.seek(0, 4)
            assert psutil.Process(pids(another.next()).pop()).ppid() == server
    assert workers() == []


@pytest.mark.parametrize(
    ("split", "kind", "message"),
    [
        (Deadly(8), TrainerError, r"reading process \(pid \d+\) was killed by SIGKILL: .*--num-workers"),
        (Rows(8, broken=tuple(range(8))), TrainerError, r"^sample \d \(row \d\) cannot be read: .* more than 3"),
        (Faulty(8), RuntimeError, "a mistake in the program"),
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


def held_out(split: Split, rank: int = 0, ranks: int = 1, **settings: Any) -> HeldOut:
    return HeldOut(split, with_positions, Settings(**settings), rank=rank, ranks=ranks, device=CPU)


@given(
    size=st.integers(1, 60),
    broken=st.sets(st.integers(0, 30), max_size=3),
    ranks=st.integers(1, 5),
    batch=st.integers(1, 20),
    wanted=st.integers(0, 80),
    blocked=st.booleans(),
)
def test_all_ranks_together_have_every_held_out_sample_once(
    size: int, broken: set[int], ranks: int, batch: int, wanted: int, blocked: bool
) -> None:
    assume(len(broken & set(range(size))) < size)
    split = Rows(size, tuple(broken), blocks=(size,) if blocked else None)
    shares = [held_out(split, rank, ranks, validate_samples=wanted) for rank in range(ranks)]
    batches = [[fields["number"].tolist() for fields in share.batches(batch)] for share in shares]
    seen = [number for mine in batches for numbers in mine for number in numbers]
    assert len(set(map(len, batches))) == 1  # a forward pass may be something that all ranks do together
    assert max(len(numbers) for mine in batches for numbers in mine) <= batch
    assert seen == sorted(set(seen) - broken)
    if not wanted or wanted >= size:
        assert seen == sorted(set(range(size)) - broken)
    elif not broken:
        assert len(seen) == wanted and (not blocked or seen == list(range(wanted)))


def test_what_is_left_out_is_reported_and_limited() -> None:
    share = held_out(Rows(20, broken=(5, 6)), max_broken_samples=2, num_workers=2)
    for _ in range(2):
        batches = list(share.batches(8))
        assert sum(len(fields["number"]) for fields in batches) == 18
        assert not set().union(*map(pids, batches)) & {os.getpid()} and workers() == []
    assert len(share.skipped()) == 2
    with pytest.raises(TrainerError, match="than 1"):
        list(held_out(Rows(20, broken=(5, 6)), max_broken_samples=1).batches(8))
    with pytest.raises(TrainerError, match="no held-out samples"):
        held_out(Rows(0))
