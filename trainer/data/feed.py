"""The stream of training batches of one rank, from any position of the run on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import torch

from trainer.config import Settings
from trainer.data.contract import Fields, Split, Transform
from trainer.data.reading import Fetched, Reader, Request
from trainer.data.sampler import micro_start, order_for
from trainer.data.samples import Samples
from trainer.data.tally import FeedReport, Tally
from trainer.data.workers import readers_for


class Feed:
    """The micro batches of rank `rank` of `ranks`, on the device. Use as a context manager or call `close`.

    They follow each other endlessly: with whole accumulations per step, that is the order of the run. Which samples a
    batch has depends on the position alone, never on the number of reading processes.
    """

    def __init__(
        self, split: Split, transform: Transform, settings: Settings, *, rank: int, ranks: int, device: torch.device
    ) -> None:
        self._rank = rank
        self._ranks = ranks
        self._device = device
        limit = settings.max_broken_samples
        samples = Samples(split, max_broken=limit, cache_bytes=settings.cache_bytes)
        self._readers = readers_for(Reader(samples, order_for(split, settings.seed), transform), settings, device)
        self._tally = Tally(limit)
        self._batches: Iterator[Fetched] = iter(())
        self._consumed = 0  # by all ranks together, where the next batch begins
        self._batch_size = 0

    def seek(self, consumed: int, batch_size: int) -> None:
        """The next batch is this rank's first one of `batch_size` samples after `consumed` samples of all ranks.

        Does nothing where the feed is there already. With persistent workers the same ones go on, after what they have
        begun to read; else new ones are started. Raises TrainerError where one has died.
        """
        if (consumed, batch_size) == (self._consumed, self._batch_size):
            return
        self._consumed, self._batch_size = consumed, batch_size
        self._batches = self._readers.fetch(self._requests(consumed, batch_size))

    def next(self) -> Fields:
        """This rank's next micro batch; `seek` comes first.

        Raises TrainerError where more samples are broken than may be, or a reading process died.
        """
        assert self._batch_size, "seek comes first"
        began = time.perf_counter()
        fetched = next(self._batches)
        fields = on_device(fetched.fields, self._device)
        self._consumed += self._ranks * self._batch_size
        self._tally.add(fetched, time.perf_counter() - began)
        return fields

    def report(self) -> FeedReport:
        """What reading took and passed over since the report before."""
        return self._tally.report()

    def close(self) -> None:
        """Ends the reading processes."""
        self._readers.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _requests(self, consumed: int, batch_size: int) -> Iterator[Request]:
        for micro in itertools.count():
            here, then = (
                micro_start(consumed, turn, self._rank, self._ranks, batch_size)
                for turn in (micro, micro + self._readers.count)
            )
            yield Request(here, batch_size, then)


def on_device(fields: Fields, device: torch.device) -> Fields:
    """The copy from page-locked memory does not make the host wait."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in fields.items()}
