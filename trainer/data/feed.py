"""A rank's batches on its device: training batches from any position of the run, and held-out batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch

from trainer.config import Settings
from trainer.data.contract import CropDraw, Fields, Split, Transform
from trainer.data.deals import Deal, redealt
from trainer.data.order import Choice, Order, evenly
from trainer.data.readers import Fetched, Reader, Readers, Request, too_many_broken
from trainer.errors import TrainerError


@dataclass(frozen=True)
class Share:
    """Data rank `rank` of `ranks`, and its device."""

    rank: int
    ranks: int
    device: torch.device


class _Feed:
    def __init__(self, split: Split, transform: Transform, settings: Settings, share: Share) -> None:
        self._split = split
        self._transform = transform
        self._settings = settings
        self._share = share
        self._stream: torch.cuda.Stream | None = None
        if share.device.type == "cuda":
            self._stream = torch.cuda.Stream(share.device)  # type: ignore[no-untyped-call]
        self._broken: set[int] = set()
        self._skipped: list[str] = []
        self._looked_up = self._hits = 0  # of the cache, in samples

    def _reader(self, choice: Choice, *, replaces: bool) -> Reader:
        return Reader(self._split, choice, self._transform, self._settings.max_broken_samples, replaces)

    def _receive(self, fetched: Fetched) -> Fields:
        """The batch on the device. Raises TrainerError above the limit of broken samples.

        On CUDA a stream of its own copies it, while the device still computes with the previous one. Copies from
        page-locked memory do not block the host.
        """
        for index, reason in fetched.broken.items():
            if index not in self._broken:
                self._broken.add(index)
                self._skipped.append(reason)
                if len(self._broken) > self._settings.max_broken_samples:
                    raise too_many_broken(self._settings.max_broken_samples, reason)
        samples, hits = fetched.cache_use
        self._looked_up += samples
        self._hits += hits
        device = self._share.device
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            fields = {name: tensor.to(device, non_blocking=True) for name, tensor in fetched.fields.items()}
        if self._stream is not None:
            compute_stream = torch.cuda.current_stream(device)
            compute_stream.wait_stream(self._stream)
            for tensor in fields.values():
                # Else the allocator may reuse this memory when the host releases it, before the device has read it.
                tensor.record_stream(compute_stream)
        return fields

    def skipped(self) -> list[str]:
        """Messages of the broken samples since the previous call, each sample once in the life of a feed."""
        skipped = self._skipped
        self._skipped = []
        return skipped

    def cache_hit_rate(self) -> float | None:
        """The share of samples since the previous call that a cache had; None if none was asked."""
        rate = None
        if self._looked_up:
            rate = self._hits / self._looked_up
        self._looked_up = self._hits = 0
        return rate


class BatchFeed(_Feed):
    """The micro batches of a rank. They never end; call `close`.

    Which samples a batch has depends on the position alone; for a split in blocks also on `deals`, which belong to the
    run's state: they divide the blocks among the reading processes of all ranks.
    """

    def __init__(
        self,
        split: Split,
        transform: Transform,
        settings: Settings,
        share: Share,
        *,
        crops: CropDraw | None = None,
    ) -> None:
        super().__init__(split, transform, settings, share)
        reader = self._reader(Order(split, settings.seed).indices, replaces=True)
        reader.crops = crops
        self._readers = Readers(reader, settings, share.device)
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
        self._consumed = consumed
        self._batch_size = batch_size
        rank = self._share.rank
        ranks = self._share.ranks
        readers = ranks * self._readers.count
        if self._split.blocks is not None:
            self.deals = redealt(self.deals, len(self._split), consumed, readers, batch_size)
        deals = self.deals
        # Within a micro batch ranks follow one another: R ranks with batch B take the samples of one with R * B.
        starts = itertools.count(consumed + rank * batch_size, ranks * batch_size)
        self._batches = self._readers.fetch(Request(start, batch_size, readers * batch_size, deals) for start in starts)

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
        self._consumed += self._share.ranks * self._batch_size
        return fields

    def close(self) -> None:
        """End the reading processes."""
        self._readers.close()


class HeldOut(_Feed):
    """A rank's share of the held-out samples, each of which is taken once, in the split's order, or left out if broken.

    With `validate_samples` only so many are taken: evenly spread over the split (it may be sorted by class), or the
    first ones of a split in blocks.

    Attributes:
        reduced_batch: samples of a validation batch, once memory ran out with more; 0 if it did not.
    """

    def __init__(self, split: Split, transform: Transform, settings: Settings, share: Share) -> None:
        super().__init__(split, transform, settings, share)
        self.reduced_batch = 0
        if len(split) == 0:
            raise TrainerError("there are no held-out samples to validate on; check --data and --data-dir")
        self._samples = min(settings.validate_samples or len(split), len(split))
        spread_over = len(split) if split.blocks is None else self._samples
        choice = functools.partial(evenly, self._samples, spread_over)
        self._held_out_reader = self._reader(choice, replaces=False)

    def batches(self, batch_size: int) -> Generator[Fields]:
        """Yield this rank's batches: equally many on every rank, and of sizes that differ by at most one on a rank.

        If there are fewer samples than that, some batches have fields of length 0. Raises TrainerError like
        `BatchFeed.next`.
        """
        rank = self._share.rank
        ranks = self._share.ranks
        first = rank * self._samples // ranks
        last = (rank + 1) * self._samples // ranks
        batches = -(-self._samples // (ranks * batch_size))  # as many as the largest share needs
        cuts = [first + (last - first) * number // batches for number in range(batches + 1)]
        # Readers of their own: idle between validations, they would double the memory of the training readers.
        with contextlib.closing(Readers(self._held_out_reader, self._settings, self._share.device)) as readers:
            requests = []
            for start, end in itertools.pairwise(cuts):
                stride = (end - start) * readers.count
                if start + stride >= last:
                    stride = 0
                requests.append(Request(start, end - start, stride))
            for fetched in readers.fetch(requests):
                fields = self._receive(fetched)
                yield fields or {name: tensor[:0] for name, tensor in self.any_sample().items()}

    def any_sample(self) -> Fields:
        """A batch of one readable sample, for forward passes that must happen on every rank."""
        reader = self._reader(functools.partial(evenly, 1, 1), replaces=True)
        return self._receive(Fetched(reader.read(Request(0, 1)).fields, {}))
