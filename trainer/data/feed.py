"""A rank's batches on its device: training batches from any position of the run, and held-out batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator

import torch

from trainer.config import Settings
from trainer.data.contract import Fields, Split, Transform
from trainer.data.order import Choice, Deal, Order, evenly, micro_start, redealt
from trainer.data.reading import Fetched, Reader, Readers, Request, too_many_broken
from trainer.errors import TrainerError


class _Feed:
    """Batches of data rank `rank` of `ranks`, on the device."""

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        self._split = split
        self._transform = transform
        self._rank = rank
        self._ranks = ranks
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._max_broken = settings.max_broken_samples
        self._broken: set[int] = set()
        self._skipped: list[str] = []

    def _reader(self, choice: Choice, *, replace: bool) -> Reader:
        return Reader(self._split, choice, self._transform, max_broken=self._max_broken, replace=replace)

    def _receive(self, fetched: Fetched) -> Fields:
        """The batch on the device. Raises TrainerError above the limit of broken samples.

        On CUDA a stream of its own copies it, while the device still computes with the previous one. Copies from
        page-locked memory do not block the host.
        """
        for index, reason in fetched.broken.items():
            if index not in self._broken:
                self._broken.add(index)
                self._skipped.append(reason)
                if len(self._broken) > self._max_broken:
                    raise too_many_broken(self._max_broken, reason)
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            fields = {name: tensor.to(self._device, non_blocking=True) for name, tensor in fetched.fields.items()}
        if self._stream is not None:
            compute_stream = torch.cuda.current_stream(self._device)
            compute_stream.wait_stream(self._stream)
            for tensor in fields.values():
                # Else the allocator may reuse this memory when the host releases it, before the device has read it.
                tensor.record_stream(compute_stream)
        return fields

    def skipped(self) -> list[str]:
        """Messages of the broken samples since the previous call, each sample once in the life of a feed."""
        skipped, self._skipped = self._skipped, []
        return skipped


class BatchFeed(_Feed):
    """The micro batches of a rank. They never end; call `close`.

    Which samples a batch has depends on the position alone; for a split in blocks also on `deals`, which belong to the
    run's state: they divide the blocks among the reading processes of all ranks.
    """

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        super().__init__(split, transform, settings, rank=rank, ranks=ranks, device=device)
        self._readers = Readers(self._reader(Order(split, settings.seed).indices, replace=True), settings, device)
        self._batches: Iterator[Fetched] = iter(())
        self._consumed = 0  # by all ranks together, where the next batch begins
        self._batch_size = 0
        self.deals: tuple[Deal, ...] = ()

    def seek(self, consumed: int, batch_size: int) -> None:
        """Continue with this rank's first batch of `batch_size` samples after `consumed` samples of all ranks.

        Does nothing if the feed is there already. Workers are reused, once they have finished what they read. Raises
        TrainerError if one has died.
        """
        if (consumed, batch_size) == (self._consumed, self._batch_size):
            return
        self._consumed, self._batch_size = consumed, batch_size
        if self._split.blocks is not None:
            lanes = self._ranks * self._readers.count
            self.deals = redealt(self.deals, len(self._split), consumed, lanes, batch_size)
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
        fields = self._receive(next(self._batches))
        self._consumed += self._ranks * self._batch_size
        return fields

    def _requests(self, consumed: int, batch_size: int) -> Iterator[Request]:
        for micro in itertools.count():
            start, next_start = (
                micro_start(consumed, number, self._rank, self._ranks, batch_size)
                for number in (micro, micro + self._readers.count)
            )
            yield Request(start, batch_size, next_start, self.deals)

    def close(self) -> None:
        """End the reading processes."""
        self._readers.close()


class HeldOut(_Feed):
    """A rank's share of the held-out samples.

    All ranks together take every sample once, in the split's order; broken ones are left out. With `validate_samples`
    only so many are taken: evenly spread over the split (it may be sorted by class), or the first ones of a split in
    blocks.
    """

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        super().__init__(split, transform, settings, rank=rank, ranks=ranks, device=device)
        if len(split) == 0:
            raise TrainerError("there are no held-out samples to validate on; check --data and --data-dir")
        self._samples = min(settings.validate_samples or len(split), len(split))
        self._settings = settings
        choice = functools.partial(evenly, self._samples, len(split) if split.blocks is None else self._samples)
        self._held_out_reader = self._reader(choice, replace=False)

    def batches(self, batch_size: int) -> Iterator[Fields]:
        """Yield this rank's batches: equally many on every rank, and of sizes that differ by at most one on a rank.

        If there are fewer samples than that, some batches have fields of length 0. Raises TrainerError like
        `BatchFeed.next`.
        """
        first, last = (rank * self._samples // self._ranks for rank in (self._rank, self._rank + 1))
        batches = -(-self._samples // (self._ranks * batch_size))  # as many as the largest share needs
        cuts = [first + (last - first) * number // batches for number in range(batches + 1)]
        # Readers of their own: idle between validations, they would double the memory of the training readers.
        with contextlib.closing(Readers(self._held_out_reader, self._settings, self._device)) as readers:
            upcoming = [*cuts[readers.count : -1], *[None] * batches]
            requests = [
                Request(start, end - start, next_start)
                for (start, end), next_start in zip(itertools.pairwise(cuts), upcoming, strict=False)
            ]
            for fetched in readers.fetch(requests):
                fields = self._receive(fetched)
                yield fields or {name: tensor[:0] for name, tensor in self.any_sample().items()}

    def any_sample(self) -> Fields:
        """A batch of one readable sample, for forward passes that must happen on every rank."""
        reader = self._reader(functools.partial(evenly, 1, 1), replace=True)
        return self._receive(Fetched(reader.read(Request(0, 1)).fields, {}))
