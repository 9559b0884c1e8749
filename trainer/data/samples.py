"""Raw samples of a split by number, from memory where they are kept, without those that cannot be read.

`SampleCache` keeps in memory, up to a bound, what was read already.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from trainer.data.contract import BrokenSample, Fields, Indices, Split
from trainer.errors import RankError

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
        """The sample, which the caller must not change; None if it is not kept."""
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


_RETRY_SECONDS = (0.05, 0.5)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.ENOTCONN)

_Samples = dict[int, Fields]  # single samples by number


@dataclass(frozen=True)
class Taken:
    """What was asked for: `places` says which of the indices the samples stand for, in order.

    `broken` has the samples that were passed over, with the reasons; an old one each time it is passed over again.
    """

    fields: Fields
    places: Indices
    broken: dict[int, str]


class Samples:
    """A split as one process reads it. Picklable as long as nothing was read.

    A broken sample is replaced by the next readable one by number, so that a resumed run does the same; with `replace`
    off it is left out. Where the disk or the network failed it is tried again; what is broken then stays so. More
    than `max_broken` of them are an error, which ends any search.
    """

    def __init__(self, split: Split, *, max_broken: int, cache_bytes: int = 0, replace: bool = True) -> None:
        self.split = split
        self.cache = SampleCache(cache_bytes) if cache_bytes else None
        self._max_broken = max_broken
        self._replace = replace
        self._broken: dict[int, str] = {}

    def take(self, indices: Indices) -> Taken:
        """These samples, stacked; no fields where none is left. Raises TrainerError if too many are broken."""
        if self.cache is None and not self._broken and len(indices):
            try:
                return Taken(_read_patiently(self.split, indices), np.arange(len(indices)), {})
            except BrokenSample:
                pass  # which ones, and how many, shows when they are read one by one
        passed: dict[int, str] = {}
        chosen = [self._pass_over(index, passed) for index in indices.tolist()]
        wanted = [index for index in chosen if index is not None]
        samples = self._kept(wanted)
        missing = list(dict.fromkeys(index for index in wanted if index not in samples))
        if missing:
            try:
                batch = self._read(missing)
            except BrokenSample:
                chosen = [None if index is None else self._readable(index, samples, passed) for index in chosen]
            else:
                if missing == wanted:
                    return Taken(batch, _places(chosen), passed)
                samples |= {index: _one(batch, row) for row, index in enumerate(missing)}
        return Taken(_stack([samples[index] for index in chosen if index is not None]), _places(chosen), passed)

    def not_kept(self, indices: Indices) -> Indices:
        """Those that would have to be read."""
        if self.cache is None:
            return indices
        return np.array([index for index in indices.tolist() if index not in self.cache], dtype=np.int64)

    def _readable(self, index: int | None, samples: _Samples, passed: dict[int, str]) -> int | None:
        """The index, or its replacement, once it is among the samples; None: left out."""
        while index is not None and index not in samples:
            if index not in self._broken:
                try:
                    samples[index] = _one(self._read([index]), 0)
                    break
                except BrokenSample as error:
                    self._note(index, str(error))
            index = self._pass_over(index, passed)
        return index

    def _pass_over(self, index: int, passed: dict[int, str]) -> int | None:
        """The index, or the next one that is not known to be broken; None: left out."""
        while index in self._broken:
            passed[index] = self._broken[index]
            if not self._replace:
                return None
            index = (index + 1) % len(self.split)
        return index

    def _note(self, index: int, reason: str) -> None:
        self._broken[index] = reason
        if len(self._broken) > self._max_broken:
            raise too_many_broken(self._max_broken, reason)
        if self._replace and len(self._broken) == len(self.split):
            raise RankError(f"none of the {len(self.split)} samples can be read; the last one: {reason}")

    def _read(self, indices: list[int]) -> Fields:
        batch = _read_patiently(self.split, np.array(indices, dtype=np.int64))
        if self.cache is not None:
            for row, index in enumerate(indices):
                self.cache.put(index, _one(batch, row))
        return batch

    def _kept(self, indices: list[int]) -> _Samples:
        if self.cache is None:
            return {}
        found = [(index, self.cache.get(index)) for index in indices]
        return {index: sample for index, sample in found if sample is not None}


def _read_patiently(split: Split, indices: Indices) -> Fields:
    """`split.read`, tried again where the disk or the network failed in a way that may pass: EIO, ESTALE, a timeout."""
    for delay in _RETRY_SECONDS:
        try:
            return split.read(indices)
        except BrokenSample as error:
            if not _may_pass(error):
                raise
        time.sleep(delay)
    return split.read(indices)


def _may_pass(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is one of the disk or network and not of the content."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__
    return False


def too_many_broken(limit: int, reason: str) -> RankError:
    """More samples than --max-broken-samples allows cannot be read; `reason` is that of the last one."""
    return RankError(f"{reason}; that is more than {limit}: repair the data or raise --max-broken-samples")


def _one(batch: Fields, row: int) -> Fields:
    return {name: tensor[row] for name, tensor in batch.items()}


def _stack(samples: list[Fields]) -> Fields:
    names = samples[0] if samples else ()
    return {name: torch.stack([sample[name] for sample in samples]) for name in names}


def _places(chosen: list[int | None]) -> Indices:
    return np.array([place for place, index in enumerate(chosen) if index is not None], dtype=np.int64)
