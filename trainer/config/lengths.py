"""The length of a phase as people give it: epochs, and samples per step however many GPUs there are.

Steps and micro batches follow from them once the number of samples and of ranks is known.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trainer.config.schema import Settings
from trainer.errors import SettingsError

_SCALED_WARMUP = 10  # a phase shorter than its warm-up warms up for a tenth of its steps, as is usual


class Consumed(NamedTuple):
    """How far a run is when it starts or resumes: steps done and samples consumed by all ranks together."""

    steps: int = 0
    samples: int = 0


def settled(settings: Settings, epoch_samples: int, data_ranks: int, consumed: Consumed) -> Settings:
    """A phase's settings with the steps and micro batches that its epochs and samples per step amount to.

    `data_ranks` ranks read different samples, of which an epoch has `epoch_samples`. Raises SettingsError if they
    cannot share a step's samples evenly.
    """
    if settings.samples_per_step:
        share = share_of_step(settings, data_ranks)
        if settings.batch_size != "auto":
            size = largest_divisor(share, settings.batch_size)
            settings = settings.model_copy(update={"batch_size": size, "grad_accum": share // size})
    if settings.epochs:
        samples = round(settings.epochs * epoch_samples) - consumed.samples
        steps = consumed.steps + math.ceil(samples / samples_per_step(settings, data_ranks))
        # Not fewer than are done: a run that resumes with fewer epochs than those ends at once.
        settings = settings.model_copy(update={"steps": max(1, consumed.steps, steps)})
    if settings.warmup_steps > settings.steps:
        settings = settings.model_copy(update={"warmup_steps": settings.steps // _SCALED_WARMUP})
    return settings


def samples_per_step(settings: Settings, data_ranks: int) -> int:
    """Samples of a step on all ranks; 0 where an automatic batch size decides."""
    if settings.samples_per_step or settings.batch_size == "auto":
        return settings.samples_per_step
    return settings.batch_size * settings.grad_accum * data_ranks


def share_of_step(settings: Settings, data_ranks: int) -> int:
    """Each rank's samples of a step, where `samples_per_step` is given. Raises SettingsError if they are not equal."""
    samples, rest = divmod(settings.samples_per_step, data_ranks)
    if rest:
        near = " or ".join(str(count * data_ranks) for count in (samples, samples + 1) if count)
        raise SettingsError(
            f"--samples-per-step {settings.samples_per_step} cannot be shared evenly by {data_ranks} ranks: use {near}"
        )
    return samples


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most so large."""
    return next(size for size in range(min(most, number), 0, -1) if number % size == 0)
