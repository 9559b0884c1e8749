"""Batches for ranges of positions: read in the order of the run, transformed, with statistics."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from trainer.data.contract import Fields, ReadsAhead, Transform
from trainer.data.order import Choice, Deal
from trainer.data.samples import Samples, too_many_broken


@dataclass(frozen=True)
class Request:
    """Asks for the samples at positions start .. start + count - 1, dealt by `deals`.

    `next_start` is where this reader's next request starts, so that it can prefetch; None if there is none.
    """

    start: int
    count: int
    next_start: int | None = None
    deals: tuple[Deal, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A batch and the cost of reading it.

    `fields` is empty if no sample is left. `broken` has the broken samples that were asked for, with the reasons.
    """

    fields: Fields
    samples: int
    broken: dict[int, str]
    cache_hits: int
    cache_misses: int
    read_seconds: float  # reading and transforming

    def pin_memory(self) -> Fetched:
        """A copy in page-locked host memory."""
        return dataclasses.replace(self, fields={name: tensor.pin_memory() for name, tensor in self.fields.items()})


class Reader:
    """Reads the batches of one process and prefetches for the next one. Picklable until the first read."""

    def __init__(self, samples: Samples, choice: Choice, transform: Transform) -> None:
        self._samples = samples
        self._choice = choice
        self._transform = transform
        # Checked once: isinstance on a protocol is slow.
        self._prefetcher = samples.split if isinstance(samples.split, ReadsAhead) else None

    def read(self, request: Request) -> Fetched:
        """Read a batch. Raises TrainerError if too many samples are broken."""
        began = time.perf_counter()
        samples, cache = self._samples, self._samples.cache
        hits, misses = (cache.hits, cache.misses) if cache is not None else (0, 0)
        batch = samples.take(self._choice(request.start, request.count, request.deals))
        fields = self._transform(batch.fields, request.start + batch.rows) if batch.fields else {}
        if request.next_start is not None and self._prefetcher is not None:
            upcoming = samples.uncached(self._choice(request.next_start, request.count, request.deals))
            if len(upcoming):
                self._prefetcher.expect(upcoming)
        return Fetched(
            fields=fields,
            samples=len(batch.rows),
            broken=batch.broken,
            cache_hits=cache.hits - hits if cache is not None else 0,
            cache_misses=cache.misses - misses if cache is not None else 0,
            read_seconds=time.perf_counter() - began,
        )


@dataclass(frozen=True)
class FeedReport:
    """Statistics since the previous report."""

    wait_seconds: float  # the training process waited for data
    read_seconds: float  # readers spent on these batches, summed over reading processes
    samples: int
    skipped: list[str]  # messages of broken samples, each sample once in the life of a feed
    cache_hit_rate: float | None  # None without a cache


class ReadTally:
    """Sums the statistics of a rank's reading processes and enforces the limit on broken samples."""

    def __init__(self, max_broken: int) -> None:
        self._max_broken = max_broken
        self._broken: set[int] = set()
        self._clear()

    def add(self, fetched: Fetched, wait_seconds: float) -> None:
        """Add a batch for which training waited. Raises TrainerError above the limit of broken samples."""
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
        """Return the sums since the previous report, and reset them."""
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
