"""The training loop of one phase: steps, validation, checkpoints, and the end or stop.

A step is the gradients of its micro batches, a vote of the ranks, and the update; it is published once it is computed.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.answering import Prompts
from trainer.batch import MicroBatches, Probe, find_batch, is_out_of_memory
from trainer.checkpoints import Checkpointer, Need, parts_on_host, shared_state, sign_of_life
from trainer.errors import RankError
from trainer.faults import Injector
from trainer.optim import set_learning_rate
from trainer.precision import forget_compiled, release_memory
from trainer.session import PhaseSession
from trainer.signals import Signals
from trainer.telemetry.speed import Lagged, Pending, Result, StepTimer, peak_of
from trainer.telemetry.telemetry import Telemetry
from trainer.validation import validate

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


class Votes(NamedTuple):
    """The votes of the ranks about a step, summed up."""

    out_of_memory: float
    stop: float
    save: float
    cpu_loss: float  # the losses of ranks on CPUs


@dataclass(frozen=True)
class PhaseEnd:
    """The end of a phase. `stopped` names the signal that stopped it; empty if all steps are done."""

    stopped: str
    validation: dict[str, float]


class Loop:
    """One rank's training of one phase. Every rank calls the same methods in the same order."""

    def __init__(
        self, session: PhaseSession, telemetry: Telemetry, checkpoints: Checkpointer, signals: Signals, faults: Injector
    ) -> None:
        self.session = session
        self.settings = session.settings
        self.world = session.world
        self.progress = session.progress
        self.telemetry = telemetry
        self.checkpoints = checkpoints
        self.signals = signals
        self.clock = StepTimer(session.world.device)
        self.faults = faults
        self.lagged: Lagged[StepFacts] = Lagged(session.world.device)
        self.oom_retries = session.settings.oom_retries
        self.peak_flops = peak_of(session.settings, session.world.device)
        self.prompts = Prompts(session) if session.settings.answer_every else None

    def train(self, *, last_phase: bool) -> PhaseEnd:
        """Train until the last step of the phase, or until a stop signal (collective).

        Raises FloatingPointError if a loss or gradient is not finite, before anything of that step is saved.
        """
        settings = self.settings
        session = self.session
        self.world.wait_for(max(settings.timeout, settings.start_timeout))
        if not session.batches.size:
            size = self.largest_batch()
            session.batches = session.batches_up_to(size)
            self.telemetry.event(self.progress.step, "batch_found", batch_size=session.batches.size)
            self.telemetry.say(
                f"the largest micro batch that fits has {size} samples: {session.samples_per_step} samples per step, "
                f"in micro batches of {session.batches.size}"
            )
        session.set_batches(session.batches)
        _reset_peak_memory(self.world.device)
        with infrequent_gc() if settings.gc_every else contextlib.nullcontext():
            return self.steps(last_phase)

    def steps(self, last_phase: bool) -> PhaseEnd:
        """Do the remaining steps of the phase, with what is due after each."""
        settings = self.settings
        session = self.session
        first = self.progress.step + 1
        while session.phase_step < settings.steps:
            epoch = session.epoch
            stop, save = self.step()
            if self.progress.step == first:
                self.world.wait_for(settings.timeout)
            step = self.progress.step
            done = session.phase_step == settings.steps
            score = None
            if not (done or stop) and settings.validate_every and step % settings.validate_every == 0:
                means = self.validate()
                stop = means is None
                score = means.get(settings.best_metric) if means and settings.best_checkpoint else None
            if not stop and self.prompts and step % settings.answer_every == 0:
                self.answer()
            ended_epoch = epoch if settings.epoch_checkpoints and session.epoch > epoch else None
            if stop:
                return self.stop(ended_epoch)
            if done:
                return self.finish(ended_epoch, last_phase)
            need: Need = "none"
            if save:
                need = "asked"
            elif settings.checkpoint_every and step % settings.checkpoint_every == 0:
                need = "due"
            self.save(need, epoch=ended_epoch, score=score)
            self.report_checkpoints()
        return self.finish(None, last_phase)

    def finish(self, epoch: int | None, last_phase: bool) -> PhaseEnd:
        """Validate and save after the last step. Only the last phase requires its checkpoint to be written."""
        self.drain()
        means = self.validate()
        if means is None:
            return self.stop(epoch)
        need: Need = "required" if last_phase else "asked"
        self.save(need, epoch=epoch, score=means.get(self.settings.best_metric))
        with self.signals.patient(sign_of_life):
            self.checkpoints.wait()
        self.report_checkpoints()
        return PhaseEnd("", means)

    def stop(self, epoch: int | None) -> PhaseEnd:
        """Save and end after a stop signal, without a validation that may be due."""
        self.drain()
        self.signals.reached()
        self.save("required", epoch=epoch)
        return PhaseEnd(self.signals.stop or "signal on another rank", {})

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self) -> tuple[bool, bool]:
        """Do one optimizer step. Returns whether any rank was asked to stop, and to save."""
        session = self.session
        world = self.world
        telemetry = self.telemetry
        strategy = self.session.strategy
        epoch = session.epoch
        self.progress.step += 1
        step = self.progress.step
        rate = set_learning_rate(strategy.optimizer, session.phase_step, self.settings)
        self.clock.start()
        with telemetry.observe(step, session.objective.model):
            while True:
                can_retry = self.smaller_batches() is not None
                local_loss, votes = self.gradients(step, survive=can_retry)
                # Unless the step may have to be repeated, the vote goes on beside the update.
                if not can_retry or not votes().out_of_memory:
                    break
                self.step_down()
            assert local_loss is not None
            if self.settings.check_gradients and step % self.settings.check_gradients == 0:
                self.check_gradients(step)
            session.precision.scaler.unscale_(strategy.optimizer)
            factor = self.normalize_weights() if session.objective.weighed else None
            if telemetry.wants_histograms(step):
                telemetry.gradients(step, strategy.local_gradients())
                telemetry.embeddings(step, session.objective.model, strategy.names)
            self.progress.samples += session.samples_per_step
            norm = self.update()
        voted = votes()
        if voted.save:
            self.signals.save = False
        if world.device.type == "cuda":
            loss = self.sum_over_ranks(local_loss)
        else:
            loss = torch.tensor(voted.cpu_loss)
        if factor is not None:
            loss = loss * factor
        telemetry.skipped(step, session.feed.skipped())
        facts = StepFacts(
            epoch=epoch,
            rate=rate,
            samples=self.progress.samples,
            samples_in_step=session.samples_per_step,
            times=self.clock.stop(),
            cache_hit_rate=session.feed.cache_hit_rate(),
        )
        results = {"loss": loss, "norm": norm}
        if session.precision.scaler.is_enabled():
            # Of the next step; `get_scale` would wait for the device.
            results["loss_scale"] = session.precision.scaler.scale(torch.ones((), device=world.device))
        self.lagged.push(step, results, facts)
        for result in self.lagged.pop_ready():
            self.publish(result)
        telemetry.bottleneck(step)
        if self.settings.gc_every and step % self.settings.gc_every == 0:
            gc.collect()
        return voted.stop > 0, voted.save > 0

    def gradients(self, step: int, *, survive: bool) -> tuple[Tensor | None, Callable[[], Votes]]:
        """Run forward and backward of a step's micro batches; returns their mean loss [], on the device, and the vote.

        The loss is None if memory ran out and `survive` is set; the all-reduces that others wait for are done then.
        """
        session = self.session
        strategy = self.session.strategy
        total = torch.zeros((), device=self.world.device)
        self.weight = torch.zeros_like(total)  # of the micro batches, for `normalize_weights`
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
                        self.weight += session.objective.weight(fields) / count
                    with session.precision.autocast():
                        loss = strategy.loss(fields) / count
                    if poison:
                        loss = loss * math.nan
                    total += loss.detach()
                    if last and not survive:
                        votes = self.begin_vote(total)  # it goes on beside backward
                    session.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return total, votes or self.begin_vote(total)
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
        # After the except block: the error's traceback keeps the activations alive.
        strategy.settle()
        return None, self.begin_vote(None)

    def begin_vote(self, loss: Tensor | None) -> Callable[[], Votes]:
        """Begin the only all-reduce of a step besides the gradients. It must not wait for a GPU."""
        cpu_loss = 0.0
        if loss is not None and self.world.device.type == "cpu":
            cpu_loss = float(loss)
        sums = self.world.begin_vote(loss is None, bool(self.signals.stop), self.signals.save, cpu_loss)
        return lambda: Votes(*sums())

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

    def normalize_weights(self) -> Tensor:
        """Divide gradients by the mean weight of all ranks' micro batches, so that every learnt token counts equally.

        Returns the factor [] for the loss (collective).
        """
        weight = self.sum_over_ranks(self.weight) / self.world.size
        factor = 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny ** 0.5)  # weight 0: gradients are 0, too
        gradients = list(self.session.strategy.local_gradients().values())
        if gradients:
            torch._foreach_mul_(gradients, factor.to(gradients[0].device))  # of --cpu-offload: in host memory
        return factor

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

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """All-reduce a scalar [] in place, without waiting for the device."""
        if self.world.backend:
            dist.all_reduce(value, group=self.world.group)
        return value

    # --- memory -------------------------------------------------------------------------------------------------------

    def smaller_batches(self) -> MicroBatches | None:
        """The micro batches to try if memory runs out; None if the step cannot be repeated."""
        if not self.oom_retries or not self.session.strategy.can_settle:
            return None
        return self.session.batches.smaller()

    def renew(self) -> None:
        """Release memory after a failed step, so that it can be repeated. Call it on all ranks."""
        self.session.strategy.renew()
        forget_compiled(self.settings)
        release_memory(self.world.device)

    def step_down(self) -> None:
        """Reduce the micro batches of all ranks, so that the step can be repeated with the same samples."""
        target = self.smaller_batches()
        assert target is not None
        former_size = self.session.batches.size
        self.oom_retries -= 1
        self.renew()
        self.session.set_batches(target)
        _reset_peak_memory(self.world.device)
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

    def largest_batch(self) -> int:
        """The largest micro batch that fits on every rank, found by trial steps (collective). The session is restored
        afterwards.

        Raises TrainerError if not even one sample fits.
        """
        session = self.session
        world = self.world
        state = shared_state(parts_on_host(session.state(), world), world, self.settings.checkpoint_dir)
        batches = session.batches
        # Memory must be measured with the optimizer's state, which the first step creates.
        self.probe(1)
        batch_size = find_batch(self.probe, self.settings.max_batch_size, world)
        session.strategy.load_optimizer_state({})
        session.load(state)
        session.batches = batches
        forget_compiled(self.settings)
        release_memory(world.device)
        return batch_size

    def probe(self, batch_size: int) -> Probe | None:
        """Train one step of up to two micro batches of this size. Returns None if any rank ran out of memory."""
        device = self.world.device
        strategy = self.session.strategy
        self.session.set_batches(MicroBatches(batch_size, min(self.session.batches.per_step, 2)))
        forget_compiled(self.settings)
        base = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            base = torch.cuda.memory_reserved(device)
        _, votes = self.gradients(self.progress.step + 1, survive=strategy.can_settle)
        if votes().out_of_memory:
            self.renew()
            return None
        self.session.precision.scaler.unscale_(strategy.optimizer)
        self.update()
        if device.type != "cuda":
            # The limit of a CPU process is unknown; only a failed allocation shows it.
            return Probe(peak_bytes=0, total_bytes=1)
        torch.cuda.synchronize(device)
        free, total_bytes = torch.cuda.mem_get_info(device)
        usable = min(free + torch.cuda.memory_reserved(device), int(total_bytes * self.settings.memory_fraction))
        return Probe(torch.cuda.max_memory_reserved(device), usable, base)

    # --- results ------------------------------------------------------------------------------------------------------

    def publish(self, result: Result[StepFacts]) -> None:
        """Write a step's metrics. Raises FloatingPointError if its loss or gradients are not finite."""
        session = self.session
        facts = result.note
        device = self.world.device
        loss = result.values["loss"] / self.world.size
        norm = result.values["norm"]
        times = facts.times(session.strategy.exchange_seconds(), result.waited)
        scaled = session.precision.scaler.is_enabled()
        samples_per_s = facts.samples_in_step / times.step
        tokens = session.objective.tokens_per_sample
        flops = session.facts.flops_per_sample
        peak = (self.peak_flops or 0) * self.world.size * session.strategy.devices
        self.progress.metrics |= {"loss": loss, "grad_norm": norm}
        metrics = {
            "epoch": facts.epoch,
            "loss": loss,
            "lr": facts.rate,
            "grad_norm": norm,
            "samples": facts.samples,
            "samples_per_s": samples_per_s,
            "tokens_per_s": None,
            "mfu": None,
            "step_time": times.step,
            "data_time": times.data,
            "comm_time": times.exchange,
            "cache_hit_rate": facts.cache_hit_rate,
            "gpu_mem_peak": None,
            "loss_scale": result.values.get("loss_scale"),
        }
        if tokens:
            metrics["tokens_per_s"] = samples_per_s * tokens
        if flops and peak:
            metrics["mfu"] = samples_per_s * flops / peak
        if device.type == "cuda":
            metrics["gpu_mem_peak"] = torch.cuda.max_memory_allocated(device)
        self.telemetry.step(result.step, metrics)
        self.telemetry.rank_timings(result.step, times)
        # With fp16, infinite gradients are normal while the scale settles: the scaler has skipped that update.
        if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
            raise FloatingPointError(f"loss is {loss} and the gradient norm {norm} at step {result.step}")
        if scaled and not math.isfinite(norm) and result.values["loss_scale"] < SMALLEST_LOSS_SCALE:
            raise FloatingPointError(
                f"gradients are not finite at step {result.step} with any scale of the loss; use --precision bf16 or"
                " fp32, or a lower --lr"
            )

    def drain(self) -> None:
        """Wait for all steps that the device still computes, and publish them."""
        for result in self.lagged.pop_ready(force=True):
            self.publish(result)

    # --- between steps ------------------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float] | None:
        """Measure on held-out data. Returns the means as ``val/…``, or None if a stop was requested meanwhile."""
        self.drain()
        before = self.session.held_out.reduced_batch
        batches = 0

        def stopping() -> bool:
            nonlocal batches
            batches += 1
            return bool(self.signals.stop)

        with self.signals.patient(lambda: batches):
            means, seconds = validate(self.session, stopping)
        if (batch := self.session.held_out.reduced_batch) != before:
            step = self.progress.step
            cause = "out of memory"
            self.telemetry.event(step, "validation_batch_reduced", cause=cause, batch_size=batch)
            self.telemetry.say(f"out of memory in validation: batches of {batch} from here on", error=True)
        if means is None:
            return None
        self.telemetry.skipped(self.progress.step, self.session.held_out.skipped())
        self.progress.metrics |= means
        self.telemetry.event(self.progress.step, "validation", **means, seconds=seconds)
        return means

    def answer(self) -> None:
        """Log the model's answers to held-out prompts."""
        self.drain()
        assert self.prompts is not None
        step = self.progress.step
        for prompt, answer in self.prompts.answers():
            self.telemetry.event(step, "answer", prompt=prompt, answer=answer)
            self.telemetry.say(f"step {step}: {prompt!r} -> {answer!r}")

    def save(self, need: Need, *, epoch: int | None = None, score: float | None = None) -> None:
        """Save the state after this step under all names that apply, if any."""
        if need == "none" and epoch is None and score is None:
            return
        self.drain()
        phase = self.settings.phase
        step = self.progress.step
        try:
            with self.signals.patient(sign_of_life):
                self.checkpoints.save(self.session.state, step=step, need=need, epoch=epoch, phase=phase, score=score)
        finally:
            self.report_checkpoints()

    def report_checkpoints(self) -> None:
        """Log the checkpoints that were written, failed or skipped since the last call."""
        for outcome in self.checkpoints.poll():
            values = {name: getattr(outcome, name) for name in ("blocked_seconds", "seconds", "bytes", "error")}
            self.telemetry.event(outcome.step, outcome.event, path=str(outcome.path), **values)
            if outcome.error and outcome.event != "checkpoint_skipped":
                negation = "not " if outcome.event == "checkpoint_failed" else ""
                self.telemetry.say(f"checkpoint {outcome.path} was {negation}written: {outcome.error}", error=True)
            for link in outcome.also:
                self.telemetry.event(outcome.step, "checkpoint", path=str(link))


@contextlib.contextmanager
def infrequent_gc() -> Iterator[None]:
    """Disable automatic garbage collection, for which ranks would pause in different steps; exempt what exists now."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
