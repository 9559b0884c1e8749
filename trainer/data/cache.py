"""Samples that were read already, kept in memory up to a bound."""

from __future__ import annotations

from collections import OrderedDict

from trainer.data.contract import Fields

# What Python and torch need to keep one entry and one tensor, besides the tensor's own data (measured, rounded up).
_ENTRY_BYTES = 400
_TENSOR_BYTES = 600


class SampleCache:
    """Single samples by number; the one that was not asked for the longest goes first.

    `hits` and `misses` count what was asked for since the cache was made.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.hits = 0
        self.misses = 0
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._samples: OrderedDict[int, Fields] = OrderedDict()

    def __contains__(self, index: int) -> bool:
        return index in self._samples

    def get(self, index: int) -> Fields | None:
        """The sample, which the caller must not change; None where it is not kept."""
        sample = self._samples.get(index)
        if sample is None:
            self.misses += 1
            return None
        self.hits += 1
        self._samples.move_to_end(index)
        return sample

    def put(self, index: int, sample: Fields) -> None:
        """Keeps a copy of a sample, unless it alone is more than the bound."""
        size = _size(sample)
        if index in self._samples or size > self._limit_bytes:
            return
        while self._used_bytes + size > self._limit_bytes:
            _, oldest = self._samples.popitem(last=False)
            self._used_bytes -= _size(oldest)
        # A view of a batch would keep the whole batch in memory.
        self._samples[index] = {name: tensor.clone() for name, tensor in sample.items()}
        self._used_bytes += size


def _size(sample: Fields) -> int:
    return _ENTRY_BYTES + sum(_TENSOR_BYTES + tensor.nbytes for tensor in sample.values())
