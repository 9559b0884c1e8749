"""The size of micro batches: stepping down when memory runs out, and finding the largest that fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trainer.config.lengths import largest_divisor
from trainer.errors import TrainerError
from trainer.world import World

# The share of a GPU's memory that a batch may need; the rest is for fragmentation and libraries.
USABLE = 0.92

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't|not enough)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is one of torch's forms of out of memory, on GPU or CPU."""
    said = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    return said or isinstance(error, torch.OutOfMemoryError)


class MicroBatches(NamedTuple):
    """How a rank cuts its samples of a step.

    Attributes:
        size: samples of a micro batch; 0 until --batch-size auto has found the largest.
        per_step: how many micro batches a step has.
    """

    size: int
    per_step: int

    def smaller(self) -> MicroBatches | None:
        """The same samples in the largest micro batches of at most three quarters of the size; None for size 1."""
        if self.size < 2:
            return None
        samples = self.size * self.per_step
        size = largest_divisor(samples, self.size * 3 // 4)
        return MicroBatches(size, samples // size)


@dataclass(frozen=True)
class Probe:
    """Memory of training with a batch size: the peak, the device's, and what any batch needs (0: unknown)."""

    peak_bytes: int
    total_bytes: int
    base_bytes: int = 0


def find_batch(probe: Callable[[int], Probe | None], limit: int, world: World, *, first: int = 1) -> int:
    """The largest micro batch that fits on every rank, to within an eighth, up to `limit` (collective).

    `probe` trains a step with a batch size and returns its memory; None if it ran out. The size doubles from `first`;
    then the gap is halved. A size is not tried if linear extrapolation of the last two predicts a peak above `USABLE`,
    because a rank that runs out of memory inside a collective of FSDP leaves the others waiting.
    Raises TrainerError if not even one sample fits.
    """
    best = 0
    too_large = limit + 1
    points: list[tuple[int, float]] = []  # batch size and share of memory of the last two that fit
    while too_large - best > max(1, best // 8):
        if too_large > limit:
            size = min(max(first, 2 * best), limit)
        else:
            size = (best + too_large) // 2
        is_likely = _forecast(points, size) <= USABLE
        probes: list[Probe] = []
        if is_likely:
            probes = [memory for memory in world.gather(probe(size)) if memory is not None]
        if len(probes) < world.size:
            too_large = size
            continue
        worst = max(probes, key=lambda memory: memory.peak_bytes / memory.total_bytes)
        if worst.base_bytes and not points:
            points = [(0, worst.base_bytes / worst.total_bytes)]
        points = [*points[-1:], (size, worst.peak_bytes / worst.total_bytes)]
        best = size
    if not best:
        raise TrainerError(
            "--batch-size auto: not even one sample fits into memory; try --gradient-checkpointing full, --precision"
            " bf16, --parallel fsdp or a smaller model"
        )
    return best


def _forecast(points: list[tuple[int, float]], size: int) -> float:
    """The predicted share of memory for a size; 0 if there are too few tries."""
    if len(points) < 2:
        return 0.0
    (low, before), (high, after) = points
    return after + (size - high) * max(0.0, after - before) / (high - low)
