"""From positions in the run to the batches that a task learns from.

`ReadTally` adds up what reading took and passed over between two reports.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from trainer.data.contract import Fields, ReadsAhead, Transform
from trainer.data.deals import Deal
from trainer.data.sampler import Order
from trainer.data.samples import Samples, too_many_broken


@dataclass(frozen=True)
class Request:
    """The samples at the positions start .. start + count - 1. The same reader's next request begins at `then`."""

    start: int
    count: int
    then: int | None = None
    deals: tuple[Deal, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A batch, and what it took. `broken` has the samples that were passed over, with the reasons.

    `fields` is empty if no sample is left.
    """

    fields: Fields
    samples: int
    broken: dict[int, str]
    cache_hits: int
    cache_misses: int
    read_seconds: float  # reading and transforming

    def pin_memory(self) -> Fetched:
        """The same in page-locked host memory."""
        return dataclasses.replace(self, fields={name: tensor.pin_memory() for name, tensor in self.fields.items()})


class Reader:
    """Reads the batches of one process: samples in some order, transformed. Picklable as long as nothing was read."""

    def __init__(self, samples: Samples, order: Order, transform: Transform) -> None:
        self._samples = samples
        self._order = order
        self._transform = transform
        # Asked once: a protocol's isinstance is slow.
        self._ahead = samples.split if isinstance(samples.split, ReadsAhead) else None

    def read(self, request: Request) -> Fetched:
        """The batch of a request. Raises TrainerError if too many samples are broken."""
        began = time.perf_counter()
        samples, cache = self._samples, self._samples.cache
        hits, misses = (cache.hits, cache.misses) if cache is not None else (0, 0)
        taken = samples.take(self._order.indices(request.start, request.count, request.deals))
        fields = self._transform(taken.fields, request.start + taken.places) if taken.fields else {}
        if request.then is not None and self._ahead is not None:
            coming = samples.not_kept(self._order.indices(request.then, request.count, request.deals))
            if len(coming):
                self._ahead.expect(coming)
        return Fetched(
            fields=fields,
            samples=len(taken.places),
            broken=taken.broken,
            cache_hits=cache.hits - hits if cache is not None else 0,
            cache_misses=cache.misses - misses if cache is not None else 0,
            read_seconds=time.perf_counter() - began,
        )


@dataclass(frozen=True)
class FeedReport:
    """Since the report before. `skipped` names each broken sample once in the life of a feed."""

    wait_seconds: float  # in which the training process waited for data
    read_seconds: float  # that readers spent on the batches it got, added up over reading processes
    samples: int
    skipped: list[str]
    cache_hit_rate: float | None  # None without a cache


class ReadTally:
    """The sums of a rank over its reading processes, and the limit on broken samples."""

    def __init__(self, max_broken: int) -> None:
        self._max_broken = max_broken
        self._broken: set[int] = set()
        self._clear()

    def add(self, fetched: Fetched, wait_seconds: float) -> None:
        """Raises TrainerError when the rank has met more broken samples than it may."""
        self._wait_seconds += wait_seconds
        self._read_seconds += fetched.read_seconds
        self._samples += fetched.samples
        self._hits += fetched.cache_hits
        self._lookups += fetched.cache_hits + fetched.cache_misses
        for index, reason in fetched.broken.items():
            if index not in self._broken:
                self._broken.add(index)
                self._skipped.append(reason)
                if len(self._broken) > self._max_broken:
                    raise too_many_broken(self._max_broken, reason)

    def report(self) -> FeedReport:
        """The sums since the report before."""
        report = FeedReport(
            wait_seconds=self._wait_seconds,
            read_seconds=self._read_seconds,
            samples=self._samples,
            skipped=self._skipped,
            cache_hit_rate=self._hits / self._lookups if self._lookups else None,
        )
        self._clear()
        return report

    def _clear(self) -> None:
        self._wait_seconds = self._read_seconds = 0.0
        self._samples = self._hits = self._lookups = 0
        self._skipped: list[str] = []
