"""Raw samples of a split by number: cached, read again after transient errors, and replaced if broken."""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from trainer.data.contract import BrokenSample, Fields, Indices, Split
from trainer.errors import RankError

# Memory of a cache entry and of a tensor, besides the tensor's data (measured, rounded up).
_ENTRY_BYTES = 400
_TENSOR_BYTES = 600


class SampleCache:
    """A least-recently-used cache of single samples by number, of at most `limit_bytes` of memory.

    `hits` and `misses` count all calls of `get`.
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
        """The sample, which the caller must not modify; None if it is not cached."""
        sample = self._samples.get(index)
        if sample is None:
            self.misses += 1
            return None
        self.hits += 1
        self._samples.move_to_end(index)
        return sample

    def put(self, index: int, sample: Fields) -> None:
        """Cache a copy of a sample, unless it alone is above the limit."""
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


_RETRY_SECONDS = (0.05, 0.5)
# Errors of a disk or network that may be gone at the next attempt.
_TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.ENOTCONN)

_Samples = dict[int, Fields]  # single samples by number


@dataclass(frozen=True)
class SampleBatch:
    """The samples for some indices.

    Attributes:
        fields: the samples, stacked; empty if none is left.
        rows: which of the indices they are for, ascending; all of them unless broken samples were left out.
        broken: the broken samples among those asked for, with the reasons; also those of earlier batches.
    """

    fields: Fields
    rows: Indices
    broken: dict[int, str]


class Samples:
    """A split as read by one process. Picklable until the first read.

    A broken sample is replaced by the next readable one by number, so that a resumed run does the same; without
    `replace` it is left out. Transient errors of disk or network are retried; a sample that still fails counts as
    broken from then on. More than `max_broken` of them are an error.
    """

    def __init__(self, split: Split, *, max_broken: int, cache_bytes: int = 0, replace: bool = True) -> None:
        self.split = split
        self.cache = SampleCache(cache_bytes) if cache_bytes else None
        self._max_broken = max_broken
        self._replace = replace
        self._broken: dict[int, str] = {}

    def take(self, indices: Indices) -> SampleBatch:
        """Read these samples. Raises TrainerError if too many are broken."""
        if self.cache is None and not self._broken and len(indices):
            try:
                return SampleBatch(_read_with_retries(self.split, indices), np.arange(len(indices)), {})
            except BrokenSample:
                pass  # below, samples are read one by one to find all broken ones
        broken: dict[int, str] = {}
        chosen = [self._replacement(index, broken) for index in indices.tolist()]
        wanted = [index for index in chosen if index is not None]
        samples = self._from_cache(wanted)
        missing = list(dict.fromkeys(index for index in wanted if index not in samples))
        if missing:
            try:
                batch = self._read(missing)
            except BrokenSample:
                chosen = [None if index is None else self._read_one(index, samples, broken) for index in chosen]
            else:
                if missing == wanted:
                    return SampleBatch(batch, _rows(chosen), broken)
                samples |= {index: _select(batch, row) for row, index in enumerate(missing)}
        return SampleBatch(_stack([samples[index] for index in chosen if index is not None]), _rows(chosen), broken)

    def uncached(self, indices: Indices) -> Indices:
        """The indices that are not in the cache."""
        if self.cache is None:
            return indices
        return np.array([index for index in indices.tolist() if index not in self.cache], dtype=np.int64)

    def _read_one(self, index: int | None, samples: _Samples, broken: dict[int, str]) -> int | None:
        """Read this sample, or its replacement, into `samples`; None: leave it out. Adds to `broken`."""
        while index is not None and index not in samples:
            if index not in self._broken:
                try:
                    samples[index] = _select(self._read([index]), 0)
                    break
                except BrokenSample as error:
                    self._mark_broken(index, str(error))
            index = self._replacement(index, broken)
        return index

    def _replacement(self, index: int, broken: dict[int, str]) -> int | None:
        """The index, or if broken the next one that is not known to be; None: leave it out. Adds to `broken`."""
        while index in self._broken:
            broken[index] = self._broken[index]
            if not self._replace:
                return None
            index = (index + 1) % len(self.split)
        return index

    def _mark_broken(self, index: int, reason: str) -> None:
        self._broken[index] = reason
        if len(self._broken) > self._max_broken:
            raise too_many_broken(self._max_broken, reason)
        if self._replace and len(self._broken) == len(self.split):
            raise RankError(f"none of the {len(self.split)} samples can be read; the last one: {reason}")

    def _read(self, indices: list[int]) -> Fields:
        batch = _read_with_retries(self.split, np.array(indices, dtype=np.int64))
        if self.cache is not None:
            for row, index in enumerate(indices):
                self.cache.put(index, _select(batch, row))
        return batch

    def _from_cache(self, indices: list[int]) -> _Samples:
        if self.cache is None:
            return {}
        return {index: sample for index in indices if (sample := self.cache.get(index)) is not None}


def _read_with_retries(split: Split, indices: Indices) -> Fields:
    """`split.read`, retried after transient errors."""
    for delay in _RETRY_SECONDS:
        try:
            return split.read(indices)
        except BrokenSample as error:
            if not _is_transient(error):
                raise
        time.sleep(delay)
    return split.read(indices)


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is transient."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
            return True
        error = error.__cause__
    return False


def too_many_broken(limit: int, reason: str) -> RankError:
    """The error for more broken samples than --max-broken-samples; `reason` is that of the last one."""
    return RankError(f"{reason}; that is more than {limit}: repair the data or raise --max-broken-samples")


def _select(batch: Fields, row: int) -> Fields:
    return {name: tensor[row] for name, tensor in batch.items()}


def _stack(samples: list[Fields]) -> Fields:
    names = samples[0] if samples else ()
    return {name: torch.stack([sample[name] for sample in samples]) for name in names}


def _rows(chosen: list[int | None]) -> Indices:
    return np.array([row for row, index in enumerate(chosen) if index is not None], dtype=np.int64)
