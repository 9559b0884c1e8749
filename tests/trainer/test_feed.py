"""The stream of batches: the run's order from any position, whoever reads it; and the held-out samples, shared out."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tests.trainer.splits import Deadly, Faulty, Interrupted, Rows, Slow, with_positions
from trainer.config import Settings
from trainer.data.contract import Split
from trainer.data.feed import BatchFeed, DeviceCopies, HeldOut
from trainer.data.reading import Fetched, ReadTally
from trainer.data.sampler import micro_start, order_for
from trainer.data.workers import describe_death
from trainer.errors import TrainerError

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def feed(split: Split, rank: int = 0, ranks: int = 1, **settings: Any) -> BatchFeed:
    return BatchFeed(split, with_positions, Settings(**settings), rank=rank, ranks=ranks, device=CPU)


def numbers(feed: BatchFeed, batches: int) -> list[list[int]]:
    return [feed.next()["number"].tolist() for _ in range(batches)]


def expected(split: Split, consumed: int, batch: int, batches: int, rank: int = 0, ranks: int = 1) -> list[list[int]]:
    order = order_for(split, 0)
    starts = [micro_start(consumed, micro, rank, ranks, batch) for micro in range(batches)]
    return [order.indices(start, batch).tolist() for start in starts]


# --- training batches -------------------------------------------------------------------------------------------------


def test_two_ranks_take_turns_over_epochs() -> None:
    split = Rows(10)
    for rank in range(2):
        with feed(split, rank, 2) as stream:
            stream.seek(0, 3)
            assert numbers(stream, 5) == expected(split, 0, 3, 5, rank, 2)


def test_seeking_goes_anywhere_with_any_batch_size() -> None:
    split = Rows(100)
    with feed(split) as stream:
        stream.seek(40, 8)
        assert numbers(stream, 2) == expected(split, 40, 8, 2)
        stream.seek(40, 4)  # the batch did not fit: half of it
        assert numbers(stream, 4) == expected(split, 40, 4, 4)
        stream.seek(0, 4)
        assert stream.next()["position"].tolist() == [0, 1, 2, 3]


def test_seeking_to_where_the_feed_is_changes_nothing() -> None:
    split = Rows(100)
    with feed(split, rank=1, ranks=2) as stream:
        stream.seek(20, 4)
        stream.seek(20, 4)
        first = numbers(stream, 3)
        stream.seek(20 + 3 * 2 * 4, 4)
        assert first + numbers(stream, 2) == expected(split, 20, 4, 5, 1, 2)


def test_reading_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with feed(Rows(100)) as stream:
        stream.seek(0, 4)
        numbers(stream, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_report_adds_up_and_starts_anew() -> None:
    with feed(Rows(20, broken=(5, 6)), cache_bytes=100_000) as stream:
        stream.seek(0, 10)
        numbers(stream, 2)
        report = stream.report()
        assert report.samples == 20
        assert sorted(report.skipped) == [f"sample {i} (row {i}) cannot be read: it is torn" for i in (5, 6)]
        assert 0 < report.read_seconds <= report.wait_seconds
        numbers(stream, 2)
        report = stream.report()
        assert (report.samples, report.skipped, report.cache_hit_rate) == (20, [], 1.0)
        assert stream.report().cache_hit_rate is None


def test_more_broken_samples_than_allowed_end_the_feed() -> None:
    with feed(Rows(20, broken=(1, 5, 9)), max_broken_samples=2) as stream:
        stream.seek(0, 20)
        with pytest.raises(TrainerError, match="more than 2"):
            stream.next()


def test_broken_samples_are_counted_over_all_readers_of_a_rank() -> None:
    tally = ReadTally(max_broken=2)

    def passed_over(*indices: int) -> Fetched:
        return Fetched({}, 4, {index: f"sample {index} is torn" for index in indices}, 0, 0, 0.0)

    tally.add(passed_over(3, 4), 0.0)
    tally.add(passed_over(4), 0.0)
    with pytest.raises(TrainerError, match="sample 5 is torn; that is more than 2"):
        tally.add(passed_over(3, 5), 0.0)
    assert tally.report().skipped == ["sample 3 is torn", "sample 4 is torn", "sample 5 is torn"]


# --- reading processes ------------------------------------------------------------------------------------------------


def test_workers_give_what_this_process_would_and_stay_for_another_position() -> None:
    split = Rows(50, broken=(3, 30))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with feed(split) as here, feed(split, num_workers=2, cache_bytes=100_000) as there:
        here.seek(8, 4)
        there.seek(8, 4)
        pids: set[int] = set()
        for _ in range(15):
            one, other = here.next(), there.next()
            pids |= set(other.pop("pid").tolist())
            assert all(torch.equal(one[name], values) for name, values in other.items())
        assert len(pids) == 2 and os.getpid() not in pids
        # Both workers came upon both broken samples, in two epochs; that is still two samples.
        report = there.report()
        assert len(report.skipped) == 2 and report.cache_hit_rate is not None
        there.seek(4, 3)
        again = [there.next() for _ in range(3)]
        assert [fields["position"].tolist() for fields in again] == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
        assert {int(fields["pid"][0]) for fields in again} == pids
    assert gone(pids)
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_that_do_not_persist_are_replaced_and_none_is_left() -> None:
    with feed(Rows(50), num_workers=1, persistent_workers=False) as stream:
        stream.seek(0, 4)
        first = int(stream.next()["pid"][0])
        stream.seek(20, 4)
        assert gone({first})
        batch = stream.next()
        assert batch["position"].tolist() == [20, 21, 22, 23]
        stream.seek(24, 4)  # where it is, so that nothing needs to end
        # A signal to the whole process group is meant for the rank, which still needs data.
        worker = int(batch["pid"][0])
        server = psutil.Process(worker).ppid()
        os.kill(server, signal.SIGTERM)
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGINT)
        batch = stream.next()
        assert batch["position"].tolist() == [24, 25, 26, 27]
        assert batch["pid"].tolist() == [worker] * 4
        stream.seek(0, 4)
        assert psutil.Process(int(stream.next()["pid"][0])).ppid() == server
    assert workers() == []


def test_a_stop_of_the_whole_process_group_does_not_end_workers_that_are_just_beginning() -> None:
    split = Interrupted(50)
    with feed(split, num_workers=2, persistent_workers=False) as stream:
        for consumed in (0, 20):
            stream.seek(consumed, 4)
            assert numbers(stream, 3) == expected(split, consumed, 4, 3)


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


def test_a_worker_that_died_meanwhile_is_noticed_when_seeking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))
    with feed(Rows(8), num_workers=1) as stream:
        stream.seek(0, 4)
        os.kill(int(stream.next()["pid"][0]), signal.SIGKILL)
        with pytest.raises(TrainerError, match="killed by SIGKILL"):
            stream.seek(4, 2)


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [(1, "ended with exit code 1;"), (-signal.SIGBUS, "killed by SIGBUS: .*/dev/shm"), (-40, "killed by signal 40")],
)
def test_the_end_of_a_worker_is_described(exitcode: int, words: str) -> None:
    assert re.search(words, describe_death(7, exitcode))


def test_closing_does_not_wait_for_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.workers._CLOSE_SECONDS", 0.1)
    stream = feed(Slow(8), num_workers=1)
    stream.seek(0, 4)
    stream.close()
    assert workers() == []


@pytest.mark.long
def test_workers_end_with_a_killed_rank() -> None:
    command = [sys.executable, "-c", "from tests.trainer.splits import feed_until_killed; feed_until_killed()"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        worker = int(rank.stdout.readline())
        assert not gone({worker}, seconds=0)
        rank.kill()
        assert gone({worker})


# --- to the device ----------------------------------------------------------------------------------------------------


class OnStreams:
    """Stands for a tensor, and for CUDA: writes down what is done, and on which stream."""

    def __init__(self) -> None:
        self.current = "computing"
        self.done: list[tuple[str, ...]] = []

    def to(self, device: torch.device, non_blocking: bool) -> OnStreams:
        assert non_blocking
        self.done.append(("copy", self.current, str(device)))
        return self

    def record_stream(self, stream: OneStream) -> None:
        self.done.append(("keep for", stream.name))

    @contextlib.contextmanager
    def stream(self, stream: OneStream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before


class OneStream:
    def __init__(self, cuda: OnStreams, name: str) -> None:
        self.name = name
        self._cuda = cuda

    def wait_stream(self, other: OneStream) -> None:
        self._cuda.done.append((self.name, "waits for", other.name))


def test_on_cuda_batches_are_copied_beside_the_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = OnStreams()
    made: list[OneStream] = []

    def make(device: torch.device) -> OneStream:
        made.append(OneStream(cuda, "copying"))
        return made[0]

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "stream", cuda.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: OneStream(cuda, "computing"))
    copies = DeviceCopies(torch.device("cuda", 1))
    for _ in range(2):
        copies({"image": cuda})  # type: ignore[dict-item]
    one_batch = [("copy", "copying", "cuda:1"), ("computing", "waits for", "copying"), ("keep for", "computing")]
    assert cuda.done == one_batch * 2 and len(made) == 1


def test_without_cuda_there_are_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", None)
    tensor = torch.ones(2)
    assert DeviceCopies(CPU)({"image": tensor})["image"] is tensor


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
    seen: list[int] = []
    batches = []
    for rank in range(ranks):
        share = held_out(split, rank, ranks, validate_samples=wanted)
        mine = [fields["number"].tolist() for fields in share.batches(batch)]
        assert all(len(numbers) <= batch for numbers in mine)
        seen += [number for numbers in mine for number in numbers]
        batches.append(len(mine))
    assert len(set(batches)) == 1  # a forward pass may be something that all ranks do together
    assert seen == sorted(set(seen) - broken)
    if not wanted or wanted >= size:
        assert seen == [number for number in range(size) if number not in broken]
    elif not broken:
        assert len(seen) == wanted
        assert not blocked or seen == list(range(wanted))


def test_a_part_of_the_held_out_samples_is_spread_over_all() -> None:
    share = held_out(Rows(100), validate_samples=4)
    assert share.samples == 4
    assert [fields["number"].tolist() for fields in share.batches(4)] == [[0, 25, 50, 75]]


def test_a_batch_without_samples_has_fields_without_samples() -> None:
    split = Rows(2, broken=(0,))
    first, last = (list(held_out(split, rank, 3).batches(4)) for rank in (0, 2))
    assert last[0]["number"].tolist() == [1]
    assert {name: values.shape[1:] for name, values in first[0].items()} == {
        name: values.shape[1:] for name, values in last[0].items()
    }
    assert [values.dtype for values in first[0].values()] == [values.dtype for values in last[0].values()]
    assert all(len(values) == 0 for values in first[0].values())


def test_what_is_left_out_is_reported_and_limited() -> None:
    with held_out(Rows(20, broken=(5, 6)), max_broken_samples=2) as share:
        for _ in range(2):
            assert sum(len(fields["number"]) for fields in share.batches(8)) == 18
        report = share.report()
        assert (report.samples, len(report.skipped), report.cache_hit_rate) == (36, 2, None)
    with held_out(Rows(20, broken=(5, 6)), max_broken_samples=1) as share, pytest.raises(TrainerError, match="than 1"):
        list(share.batches(8))
    with pytest.raises(TrainerError, match="no held-out samples"):
        held_out(Rows(0))


def test_held_out_samples_are_read_by_workers_that_end_with_each_validation() -> None:
    with feed(Rows(50), num_workers=2) as training, held_out(Rows(20), num_workers=2) as share:
        training.seek(0, 4)
        own = {int(training.next()["pid"][0]) for _ in range(4)}
        for _ in range(2):
            batches = list(share.batches(4))
            assert [number for fields in batches for number in fields["number"].tolist()] == list(range(20))
            pids = {int(fields["pid"][0]) for fields in batches}
            assert len(pids) == 2 and not pids & own
            assert gone(pids) and len(workers()) == len(own) == 2
        assert {int(training.next()["pid"][0]) for _ in range(4)} == own


def workers() -> list[str]:
    """Children of this process that were started by a fork server; the ranks of other tests were not."""
    return [child.name for child in multiprocessing.active_children() if child.name.startswith("ForkServer")]


def gone(pids: set[int], seconds: float = 120.0) -> bool:
    """Whether all processes end within some time."""
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True
