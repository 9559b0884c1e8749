"""The optimizer steps of a phase: gradients of micro batches, a vote of the ranks, and the update."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.batch import MicroBatches, is_out_of_memory
from trainer.errors import RankError
from trainer.faults import Injector
from trainer.optim import set_learning_rate
from trainer.precision import forget_compiled, release_memory
from trainer.session import PhaseSession
from trainer.signals import Signals
from trainer.step_results import StepFacts, StepResults
from trainer.telemetry.speed import StepTimer
from trainer.telemetry.telemetry import Telemetry


class Votes(NamedTuple):
    """The votes of the ranks about a step, summed up."""

    out_of_memory: float
    stop: float
    save: float
    cpu_loss: float  # the losses of ranks on CPUs


class Accumulated(NamedTuple):
    """What the micro batches of a step amount to on this rank, besides gradients.

    Attributes:
        loss: their mean [], on the device; None if memory ran out.
        weight: their mean [], of an objective that weighs them.
        votes: waits for the ranks' vote.
    """

    loss: Tensor | None
    weight: Tensor
    votes: Callable[[], Votes]


class Stepper:
    """One rank's optimizer steps. Every rank calls the same methods in the same order.

    Attributes:
        results: of the steps done, published as they are known.
    """

    def __init__(self, session: PhaseSession, telemetry: Telemetry, signals: Signals, faults: Injector) -> None:
        self.session = session
        self.settings = session.settings
        self.world = session.world
        self.progress = session.progress
        self.telemetry = telemetry
        self.signals = signals
        self.faults = faults
        self.clock = StepTimer(session.world.device)
        self.oom_retries = session.settings.oom_retries
        self.results = StepResults(session, telemetry)

    def step(self) -> tuple[bool, bool]:
        """Do one optimizer step. Returns whether any rank was asked to stop, and to save."""
        session = self.session
        epoch = session.epoch
        self.progress.step += 1
        step = self.progress.step
        rate = set_learning_rate(session.strategy.optimizer, session.phase_step, self.settings)
        self.clock.start()
        with self.telemetry.observe(step, session.objective.model):
            accumulated = self.gradients_that_fit(step)
            factor = self.finish_gradients(step, accumulated.weight)
            self.progress.samples += session.samples_per_step
            norm = self.update()
        votes = accumulated.votes()
        if votes.save:
            self.signals.save = False
        results = {"loss": self.summed_loss(accumulated, votes), "norm": norm}
        if factor is not None:
            results["loss"] = results["loss"] * factor
        scaler = session.precision.scaler
        if scaler.is_enabled():
            # Of the next step; `get_scale` would wait for the device.
            results["loss_scale"] = scaler.scale(torch.ones((), device=self.world.device))
        self.telemetry.skipped(step, session.feed.skipped())
        facts = StepFacts(
            epoch=epoch,
            rate=rate,
            samples=self.progress.samples,
            samples_in_step=session.samples_per_step,
            times=self.clock.stop(),
            cache_hit_rate=session.feed.cache_hit_rate(),
        )
        self.results.add(step, results, facts)
        self.telemetry.bottleneck(step)
        if self.settings.gc_every and step % self.settings.gc_every == 0:
            gc.collect()
        return votes.stop > 0, votes.save > 0

    # --- gradients ----------------------------------------------------------------------------------------------------

    def gradients_that_fit(self, step: int) -> Accumulated:
        """Compute gradients, with smaller micro batches each time that memory runs out on any rank."""
        while True:
            can_retry = self.smaller_batches() is not None
            accumulated = self.gradients(step, survive=can_retry)
            # Unless the step may have to be repeated, the vote goes on beside the update.
            if not can_retry or not accumulated.votes().out_of_memory:
                return accumulated
            self.step_down()

    def gradients(self, step: int, *, survive: bool) -> Accumulated:
        """Run forward and backward of a step's micro batches.

        With `survive`, the all-reduces that others wait for are done if memory ran out.
        """
        session = self.session
        strategy = self.session.strategy
        total = torch.zeros((), device=self.world.device)
        weight = torch.zeros_like(total)
        votes: Callable[[], Votes] | None = None
        try:
            count = session.batches.per_step
            for micro in range(count):
                last = micro == count - 1
                with strategy.accumulate(last=last):
                    poison = micro == 0 and self.faults.before_step(step, session.batches.size)
                    with self.clock.data():
                        fields = session.feed.next()
                    if session.objective.weighed:
                        weight += session.objective.weight(fields) / count
                    with session.precision.autocast():
                        loss = strategy.loss(fields) / count
                    if poison:
                        loss = loss * math.nan
                    total += loss.detach()
                    if last and not survive:
                        votes = self.begin_vote(total)  # it goes on beside backward
                    session.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return Accumulated(total, weight, votes or self.begin_vote(total))
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
        # After the except block: the error's traceback keeps the activations alive.
        strategy.settle()
        return Accumulated(loss=None, weight=weight, votes=self.begin_vote(loss=None))

    def begin_vote(self, loss: Tensor | None) -> Callable[[], Votes]:
        """Begin the only all-reduce of a step besides the gradients. It must not wait for a GPU."""
        cpu_loss = 0.0
        if loss is not None and self.world.device.type == "cpu":
            cpu_loss = float(loss)
        sums = self.world.begin_vote(loss is None, bool(self.signals.stop), self.signals.save, cpu_loss)
        return lambda: Votes(*sums())

    def finish_gradients(self, step: int, weight: Tensor) -> Tensor | None:
        """Check, unscale, weigh and describe the gradients, before they are clipped.

        Returns the factor [] for the loss if the objective weighs micro batches (collective).
        """
        session = self.session
        strategy = session.strategy
        if self.settings.check_gradients and step % self.settings.check_gradients == 0:
            self.check_gradients(step)
        session.precision.scaler.unscale_(strategy.optimizer)
        factor = None
        if session.objective.weighed:
            factor = self.normalize_weights(weight)
        if self.telemetry.wants_histograms(step):
            self.telemetry.gradients(step, strategy.local_gradients())
            self.telemetry.embeddings(step, session.objective.model, strategy.names)
        return factor

    def check_gradients(self, step: int) -> None:
        """Raise RankError, before they are used, if gradients are not the same on all ranks that should have the same
        (collective)."""
        strategy = self.session.strategy
        unlike = strategy.unlike_gradients()
        if unlike is None:
            self.telemetry.event(step, "gradients_checked", ranks=self.world.size)
            return
        name, ranks = unlike
        pairs = ", ".join(f"rank {rank} from rank {rank % strategy.shards}" for rank in ranks)
        self.telemetry.event(step, "gradients_differ", parameter=name, ranks=pairs)
        raise RankError(
            f"gradients of {name} differ between ranks at step {step}: {pairs}; look for a hook or a layer that works"
            " on one rank only, else test the GPUs and their links"
        )

    def normalize_weights(self, weight: Tensor) -> Tensor:
        """Divide gradients by the mean weight of all ranks' micro batches, so that every learnt token counts equally.

        Returns the factor [] for the loss (collective).
        """
        mean = self.sum_over_ranks(weight) / self.world.size
        factor = 1 / mean.clamp_min(torch.finfo(mean.dtype).tiny ** 0.5)  # weight 0: gradients are 0, too
        gradients = list(self.session.strategy.local_gradients().values())
        if gradients:
            torch._foreach_mul_(gradients, factor.to(gradients[0].device))  # of --cpu-offload: in host memory
        return factor

    # --- the update ---------------------------------------------------------------------------------------------------

    def update(self) -> Tensor:
        """Clip gradients, step the optimizer and the averages. Returns the norm [] before clipping, on the device."""
        session = self.session
        strategy = self.session.strategy
        scaler = self.session.precision.scaler
        norm = strategy.clip(self.settings.grad_clip)
        scaler.step(strategy.optimizer)
        scaler.update()
        strategy.clear_gradients()
        strategy.after_update()
        if session.ema:
            session.ema.update(self.progress.step)
        return norm

    def summed_loss(self, accumulated: Accumulated, votes: Votes) -> Tensor:
        """The sum [] of all ranks' losses, which on CPUs came with the votes (collective)."""
        if self.world.device.type != "cuda":
            return torch.tensor(votes.cpu_loss)
        assert accumulated.loss is not None
        return self.sum_over_ranks(accumulated.loss)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """All-reduce a scalar [] in place, without waiting for the device."""
        if self.world.backend:
            dist.all_reduce(value, group=self.world.group)
        return value

    # --- running out of memory ----------------------------------------------------------------------------------------

    def smaller_batches(self) -> MicroBatches | None:
        """The micro batches to try if memory runs out; None if the step cannot be repeated."""
        if not self.oom_retries or not self.session.strategy.can_settle:
            return None
        return self.session.batches.smaller()

    def step_down(self) -> None:
        """Reduce the micro batches of all ranks, so that the step can be repeated with the same samples."""
        target = self.smaller_batches()
        assert target is not None
        former_size = self.session.batches.size
        self.oom_retries -= 1
        self.renew()
        self.session.set_batches(target)
        reset_peak_memory(self.world.device)
        self.telemetry.event(
            self.progress.step,
            "batch_reduced",
            cause="out of memory",
            batch_size=target.size,
            grad_accum=target.per_step,
        )
        self.telemetry.say(
            f"out of memory at step {self.progress.step}: micro batches of {target.size} instead of {former_size}, "
            f"{target.per_step} of them per step",
            error=True,
        )

    def renew(self) -> None:
        """Release memory after a failed step, so that it can be repeated. Call it on all ranks."""
        self.session.strategy.renew()
        forget_compiled(self.settings)
        release_memory(self.world.device)


def reset_peak_memory(device: torch.device) -> None:
    """Measure the peak of a GPU's memory from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
