"""The size of micro batches: stepping down when memory runs out, and finding the largest that fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.errors import TrainerError
from trainer.world import World

# The share of a GPU's memory that a batch may need; the rest is for fragmentation and libraries.
USABLE = 0.92

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't|not enough)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one of torch's forms of out of memory, on GPU or CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def smaller(batch_size: int, grad_accum: int) -> tuple[int, int] | None:
    """The next smaller micro batch and its accumulation with exactly the same product; None for a batch of 1.

    It is the largest divisor of the product that is at most three quarters of the batch.
    """
    if batch_size <= 1:
        return None
    samples = batch_size * grad_accum
    size = next(size for size in range(batch_size * 3 // 4, 0, -1) if samples % size == 0)
    return size, samples // size


@dataclass(frozen=True)
class Probe:
    """Memory of training with one batch size.

    Attributes:
        peak_bytes: peak reserved memory.
        total_bytes: usable memory of the device.
        base_bytes: reserved between steps, for any batch (weights, gradients, optimizer state); 0 if unknown.
    """

    peak_bytes: int
    total_bytes: int
    base_bytes: int = 0


class AutoBatch:
    """Searches the largest batch size that fits. The caller tries `next_try`, calls `fitted` or `failed`, and repeats.

    The size doubles from 1; then the gap is halved until the result is within an eighth of the largest possible. A size
    is not tried if linear extrapolation of the last two predicts a peak above `USABLE` of the memory, because a rank
    that runs out of memory inside a collective of FSDP leaves the others waiting.
    """

    def __init__(self, limit: int) -> None:
        self.result = 0  # the largest size so far that fits; 0 if none is known
        self.next_try: int | None = 1  # None if the search is over
        self._limit = limit
        self._too_large = limit + 1
        self._points: list[tuple[int, float]] = []  # batch size and share of memory of the last two that fit

    def fitted(self, probe: Probe) -> None:
        """Report that `next_try` fits, and its memory."""
        size = self._tried()
        if probe.base_bytes and not self._points:
            self._points.append((0, probe.base_bytes / probe.total_bytes))
        self._points = [*self._points[-1:], (size, probe.peak_bytes / probe.total_bytes)]
        self.result = size
        self._plan()

    def failed(self) -> None:
        """Report that `next_try` ran out of memory."""
        self._too_large = self._tried()
        self._plan()

    def _tried(self) -> int:
        if self.next_try is None:
            raise ValueError("the search for a batch size is over")
        return self.next_try

    def _plan(self) -> None:
        self.next_try = None
        while self._too_large - self.result > max(1, self.result // 8):
            growing = self._too_large > self._limit
            size = min(2 * self.result, self._limit) if growing else (self.result + self._too_large) // 2
            if self._forecast(size) <= USABLE:
                self.next_try = size
                return
            self._too_large = size

    def _forecast(self, size: int) -> float:
        """The predicted share of memory for a size; 0 if there are too few tries."""
        if len(self._points) < 2:
            return 0.0
        (low, before), (high, after) = self._points
        return after + (size - high) * max(0.0, after - before) / (high - low)


def find_batch(probe: Callable[[int], Probe | None], limit: int, world: World) -> int:
    """The largest micro batch that fits on every rank, up to `limit`. All ranks call it (collective).

    `probe` trains at least one complete step with a batch size, so that the optimizer's state exists, and returns its
    memory; None if it ran out. Raises TrainerError if not even one sample fits.
    """
    search = AutoBatch(limit)
    while (size := search.next_try) is not None:
        probes = [each for each in world.gather(probe(size)) if each is not None]
        if len(probes) < world.size:
            search.failed()
        else:
            search.fitted(max(probes, key=lambda each: each.peak_bytes / each.total_bytes))
    if not search.result:
        raise TrainerError(
            "--batch-size auto: not even one sample fits into memory; try --gradient-checkpointing full, --precision"
            " bf16, --parallel fsdp or a smaller model"
        )
    return search.result
