"""From positions in the run to the batches that a task learns from."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from trainer.data.contract import Fields, ReadsAhead, Transform
from trainer.data.sampler import Order
from trainer.data.samples import Samples


@dataclass(frozen=True)
class Request:
    """The samples at the positions start .. start + count - 1. The same reader's next request begins at `then`."""

    start: int
    count: int
    then: int | None = None


@dataclass(frozen=True)
class Fetched:
    """A batch, and what it took. `broken` has the samples that were passed over, with the reasons.

    `fields` is empty where no sample is left.
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
        """The batch of a request. Raises TrainerError where too many samples are broken."""
        began = time.perf_counter()
        samples, cache = self._samples, self._samples.cache
        hits, misses = (cache.hits, cache.misses) if cache is not None else (0, 0)
        taken = samples.take(self._order.indices(request.start, request.count))
        fields = self._transform(taken.fields, request.start + taken.places) if taken.fields else {}
        if request.then is not None and self._ahead is not None:
            coming = samples.not_kept(self._order.indices(request.then, request.count))
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
