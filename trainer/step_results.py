"""Results of optimizer steps: written once the device has computed them, and checked to be finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.session import PhaseSession
from trainer.telemetry.speed import Lagged, Pending, Result, peak_of
from trainer.telemetry.telemetry import Telemetry

# Below this scale an fp16 loss underflows, so gradients that are still infinite come from the model.
SMALLEST_LOSS_SCALE = 2.0**-24


@dataclass(frozen=True)
class StepFacts:
    """Facts about a step that the host knows while the device may still compute it.

    Attributes:
        samples: since the start of the run, over all ranks.
        cache_hit_rate: of this rank's samples; None if its data has no cache.
    """

    epoch: int
    rate: float
    samples: int
    samples_in_step: int
    times: Pending
    cache_hit_rate: float | None


class StepResults:
    """The results of a phase's steps, in their order."""

    def __init__(self, session: PhaseSession, telemetry: Telemetry) -> None:
        self.session = session
        self.telemetry = telemetry
        self.lagged: Lagged[StepFacts] = Lagged(session.world.device)
        self.peak_flops = peak_of(session.settings, session.world.device)

    def add(self, step: int, scalars: Mapping[str, Tensor], facts: StepFacts) -> None:
        """Add the results of a step, scalars [] on the device, and publish those that are known.

        Raises FloatingPointError like `publish`.
        """
        self.lagged.push(step, scalars, facts)
        for result in self.lagged.pop_ready():
            self.publish(result)

    def drain(self) -> None:
        """Wait for all steps that the device still computes, and publish them."""
        for result in self.lagged.pop_ready(force=True):
            self.publish(result)

    def publish(self, result: Result[StepFacts]) -> None:
        """Write a step's metrics. Raises FloatingPointError if its loss or gradients are not finite."""
        session = self.session
        facts = result.note
        loss = result.values["loss"] / session.world.size
        norm = result.values["norm"]
        loss_scale = result.values.get("loss_scale")
        times = facts.times(session.strategy.exchange_seconds(), result.waited)
        session.progress.metrics |= {"loss": loss, "grad_norm": norm}
        metrics = {
            "epoch": facts.epoch,
            "loss": loss,
            "lr": facts.rate,
            "grad_norm": norm,
            "samples": facts.samples,
            **self.rates(facts.samples_in_step / times.step),
            "step_time": times.step,
            "data_time": times.data,
            "comm_time": times.exchange,
            "cache_hit_rate": facts.cache_hit_rate,
            "loss_scale": loss_scale,
        }
        if session.world.device.type == "cuda":
            metrics["gpu_mem_peak"] = torch.cuda.max_memory_allocated(session.world.device)
        self.telemetry.step(result.step, metrics)
        self.telemetry.rank_timings(result.step, times)
        # With fp16, infinite gradients are normal while the scale settles: the scaler has skipped that update.
        if not math.isfinite(loss) or (loss_scale is None and not math.isfinite(norm)):
            raise FloatingPointError(f"loss is {loss} and the gradient norm {norm} at step {result.step}")
        if loss_scale is not None and not math.isfinite(norm) and loss_scale < SMALLEST_LOSS_SCALE:
            raise FloatingPointError(
                f"gradients are not finite at step {result.step} with any scale of the loss; use --precision bf16 or"
                " fp32, or a lower --lr"
            )

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """The speed in samples, in tokens, and as a share of the GPUs' peak, as far as these have a meaning."""
        session = self.session
        rates = {"samples_per_s": samples_per_s}
        if session.objective.tokens_per_sample:
            rates["tokens_per_s"] = samples_per_s * session.objective.tokens_per_sample
        if session.facts.flops_per_sample and self.peak_flops:
            peak = self.peak_flops * session.world.size * session.strategy.devices
            rates["mfu"] = samples_per_s * session.facts.flops_per_sample / peak
        return rates
