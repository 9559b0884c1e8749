"""A rank's batches on its device: training batches from any position of the run, and held-out batches."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.contract import Fields, Split, Transform
from trainer.data.order import Deal, Order, evenly, micro_start, redealt
from trainer.data.reading import FeedReport, Fetched, Reader, ReadTally, Request
from trainer.data.samples import Samples
from trainer.data.workers import readers_for
from trainer.errors import TrainerError


class BatchFeed:
    """The micro batches of rank `rank` of `ranks`, on the device. Use as a context manager or call `close`.

    They never end. Which samples a batch has depends on the position alone; for a split in blocks also on `deals`,
    which belong to the run's state: they divide the blocks among the reading processes of all ranks.
    """

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        self._rank = rank
        self._ranks = ranks
        self._to_device = DeviceCopies(device)
        limit = settings.max_broken_samples
        samples = Samples(split, max_broken=limit, cache_bytes=settings.cache_bytes)
        order = Order(split, settings.seed)
        reader = Reader(samples, order.indices, transform)
        self._readers = readers_for(reader, settings, device, persistent=settings.persistent_workers)
        self._tally = ReadTally(limit)
        self._batches: Iterator[Fetched] = iter(())
        self._consumed = 0  # by all ranks together, where the next batch begins
        self._batch_size = 0
        self._size = order.size
        self._in_blocks = split.blocks is not None
        self.deals: tuple[Deal, ...] = ()

    def seek(self, consumed: int, batch_size: int) -> None:
        """Continue with this rank's first batch of `batch_size` samples after `consumed` samples of all ranks.

        Does nothing if the feed is there already. Persistent workers are reused, once they have finished what they
        read; otherwise new ones are started. Raises TrainerError if one has died.
        """
        if (consumed, batch_size) == (self._consumed, self._batch_size):
            return
        self._consumed, self._batch_size = consumed, batch_size
        if self._in_blocks:
            lanes = self._ranks * self._readers.count
            self.deals = redealt(self.deals, self._size, consumed, lanes, batch_size)
        self._batches = self._readers.fetch(self._requests(consumed, batch_size))

    def resume(self, deals: tuple[Deal, ...]) -> None:
        """Take over the deals of another feed of the run. Call `seek` next."""
        self.deals = deals
        self._batch_size = 0

    def next(self) -> Fields:
        """This rank's next micro batch. Call `seek` first.

        Raises TrainerError if too many samples are broken, or a reading process died.
        """
        assert self._batch_size, "call seek first"
        began = time.perf_counter()
        fetched = next(self._batches)
        fields = self._to_device(fetched.fields)
        self._consumed += self._ranks * self._batch_size
        self._tally.add(fetched, time.perf_counter() - began)
        return fields

    def report(self) -> FeedReport:
        """Statistics of reading since the previous report."""
        return self._tally.report()

    def close(self) -> None:
        """End the reading processes."""
        self._readers.close()

    def __enter__(self) -> BatchFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _requests(self, consumed: int, batch_size: int) -> Iterator[Request]:
        for micro in itertools.count():
            start, next_start = (
                micro_start(consumed, number, self._rank, self._ranks, batch_size)
                for number in (micro, micro + self._readers.count)
            )
            yield Request(start, batch_size, next_start, self.deals)


class DeviceCopies:
    """Copies batches to a device.

    On CUDA it uses a separate stream, so that a batch is copied while the device still computes with the previous one.
    Copies from page-locked memory do not block the host.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, fields: Fields) -> Fields:
        if self._stream is None:
            return self._copy(fields)
        compute_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            copied = self._copy(fields)
        compute_stream.wait_stream(self._stream)
        for tensor in copied.values():
            # Else the allocator may reuse this memory when the host releases it, before the device has read it.
            tensor.record_stream(compute_stream)
        return copied

    def _copy(self, fields: Fields) -> Fields:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in fields.items()}


class HeldOut:
    """This rank's share of the held-out samples. Use as a context manager or call `close`.

    All ranks together take every sample once, in the split's order; broken ones are left out. With `validate_samples`
    only so many are taken: evenly spread over the split (it may be sorted by class), or the first ones of a split in
    blocks. Nothing is cached.
    """

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        if len(split) == 0:
            raise TrainerError("there are no held-out samples to validate on; check --data and --data-dir")
        self.samples = min(settings.validate_samples or len(split), len(split))
        self._split = split
        self._transform = transform
        self._rank = rank
        self._ranks = ranks
        self._to_device = DeviceCopies(device)
        self._max_broken = settings.max_broken_samples
        choice = functools.partial(evenly, self.samples, len(split) if split.blocks is None else self.samples)
        samples = Samples(split, max_broken=self._max_broken, replace=False)
        # Not persistent: idle between validations, they would double the memory of the training readers.
        self._readers = readers_for(Reader(samples, choice, transform), settings, device, persistent=False)
        self._tally = ReadTally(self._max_broken)

    def batches(self, batch_size: int) -> Iterator[Fields]:
        """Yield this rank's batches: equally many on every rank, and of sizes that differ by at most one on a rank.

        If there are fewer samples than that, some batches have fields of length 0. Raises TrainerError like
        `BatchFeed.next`.
        """
        requests = held_out_requests(self.samples, self._rank, self._ranks, batch_size, self._readers.count)
        fetched = self._readers.fetch(requests)
        began = time.perf_counter()
        for batch in fetched:
            fields = self._to_device(batch.fields) if batch.fields else self._empty_batch()
            self._tally.add(batch, time.perf_counter() - began)
            yield fields
            began = time.perf_counter()

    def report(self) -> FeedReport:
        """Statistics of reading since the previous report."""
        return self._tally.report()

    def close(self) -> None:
        """End the reading processes."""
        self._readers.close()

    def __enter__(self) -> HeldOut:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def any_sample(self) -> Fields:
        """A batch of one readable sample, for forward passes that must happen on every rank."""
        index = np.zeros(1, dtype=np.int64)
        batch = Samples(self._split, max_broken=self._max_broken).take(index)
        return self._to_device(self._transform(batch.fields, index))

    def _empty_batch(self) -> Fields:
        return {name: tensor[:0] for name, tensor in self.any_sample().items()}


def held_out_requests(samples: int, rank: int, ranks: int, batch_size: int, readers: int) -> list[Request]:
    """The requests of one rank: its contiguous share of the samples, in as many batches as the largest share needs."""
    first, last = rank * samples // ranks, (rank + 1) * samples // ranks
    batches = -(-samples // (ranks * batch_size))
    cuts = [first + (last - first) * number // batches for number in range(batches + 1)]
    return [
        Request(start, end - start, cuts[number + readers] if number + readers < batches else None)
        for number, (start, end) in enumerate(itertools.pairwise(cuts))
    ]
