"""The training loop of one phase: steps, validation, checkpoints, and the end or stop."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trainer.answering import Prompts
from trainer.batch import smaller
from trainer.checkpoints import Checkpointer
from trainer.checkpoints.streams import sign_of_life
from trainer.errors import SettingsError
from trainer.faults import Injector
from trainer.probing import largest_batch
from trainer.session import PhaseSession
from trainer.signals import Signals
from trainer.stepper import Stepper
from trainer.telemetry.peaks import peak_of
from trainer.telemetry.telemetry import Telemetry
from trainer.telemetry.timing import Lagged, Pending, Result, StepTimer
from trainer.validation import validate

# Below this scale an fp16 loss underflows, so gradients that are still infinite come from the model.
SMALLEST_LOSS_SCALE = 2.0**-24


@dataclass(frozen=True)
class StepFacts:
    """What the host knows about a step while the device may still compute it."""

    epoch: int
    rate: float
    samples: int
    samples_in_step: int
    times: Pending
    cache_hit_rate: float | None


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
        self.stepper = Stepper(session, faults, self.clock)
        self.lagged: Lagged[StepFacts] = Lagged(session.world.device)
        self.oom_retries = session.settings.oom_retries
        self.peak_flops = peak_of(session.settings, session.world.device)
        self.prompts = Prompts(session) if session.settings.answer_every else None

    def train(self, *, last_phase: bool) -> PhaseEnd:
        """Train until the last step of the phase, or until a stop signal (collective).

        Raises FloatingPointError if a loss or gradient is not finite, before anything of that step is saved.
        """
        settings, session = self.settings, self.session
        self.world.wait_for(max(settings.timeout, settings.start_timeout))
        if not session.batch_size:
            session.batch_size = largest_batch(session, self.stepper)
            self.telemetry.event(self.progress.step, "batch_found", batch_size=session.batch_size)
            self.telemetry.say(f"the largest micro batch that fits has {session.batch_size} samples")
        session.set_batch(session.batch_size, session.grad_accum)
        _reset_peak_memory(self.world.device)
        with infrequent_gc() if settings.gc_every else contextlib.nullcontext():
            return self.steps(last_phase)

    def steps(self, last_phase: bool) -> PhaseEnd:
        """Do the remaining steps of the phase, with what is due after each."""
        settings, session = self.settings, self.session
        first = True
        while session.phase_step < settings.steps:
            epoch = session.epoch
            stop, save = self.step()
            if first:
                self.world.wait_for(settings.timeout)
                first = False
            step, done = self.progress.step, session.phase_step == settings.steps
            score = None
            if not (done or stop) and settings.validate_every and step % settings.validate_every == 0:
                means = self.validate()
                stop = means is None
                score = means.get(settings.best_metric) if means else None
            if not stop and self.prompts and step % settings.answer_every == 0:
                self.answer()
            ended_epoch = epoch if session.epoch > epoch else None
            if stop:
                return self.stop(ended_epoch)
            periodic = save or bool(settings.checkpoint_every and step % settings.checkpoint_every == 0)
            if not done and (periodic or ended_epoch is not None or score is not None):
                self.save(periodic=periodic, epoch=ended_epoch, score=score)
            if done:
                return self.finish(ended_epoch, last_phase)
            self.report_checkpoints()
        return self.finish(None, last_phase)

    def finish(self, epoch: int | None, last_phase: bool) -> PhaseEnd:
        """Validate and save after the last step. Only the last phase requires its checkpoint to be written."""
        self.drain()
        means = self.validate()
        if means is None:
            return self.stop(epoch)
        self.save(epoch=epoch, score=means.get(self.settings.best_metric), required=last_phase)
        with self.signals.patient(sign_of_life):
            self.checkpoints.wait()
        self.report_checkpoints()
        return PhaseEnd("", means)

    def stop(self, epoch: int | None) -> PhaseEnd:
        """Save and end after a stop signal, without a validation that may be due."""
        self.drain()
        self.signals.reached()
        self.save(epoch=epoch, required=True)
        return PhaseEnd(self.signals.stop or "signal on another rank", {})

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self) -> tuple[bool, bool]:
        """Do one optimizer step. Returns whether any rank was asked to stop, and to save."""
        session, world, telemetry = self.session, self.world, self.telemetry
        rate = session.schedule.advance()
        epoch = session.epoch
        self.progress.step += 1
        step = self.progress.step
        self.clock.start()
        with telemetry.observe(step, session.objective.model):
            while True:
                can_retry = self.smaller_batch() is not None
                local_loss = self.stepper.gradients(step, survive=can_retry)
                save_asked, self.signals.save = self.signals.save, False
                # The only all-reduce of a step besides the gradients. It must not wait for a GPU.
                cpu_loss = float(local_loss) if local_loss is not None and world.device.type == "cpu" else 0.0
                failed, stop, save, summed_cpu_loss = world.vote(
                    local_loss is None, bool(self.signals.stop), save_asked, cpu_loss
                )
                if not failed:
                    break
                self.step_down(save_asked)
            assert local_loss is not None
            self.stepper.unscale()
            factor = self.stepper.normalize_weights()
            if telemetry.wants_histograms(step):
                telemetry.gradients(step, session.strategy.local_gradients(), session.objective.model)
            self.progress.samples += session.samples_per_step
            norm = self.stepper.update()
        on_gpu = world.device.type == "cuda"
        summed_loss = self.stepper.sum_over_ranks(local_loss) if on_gpu else torch.tensor(summed_cpu_loss)
        if factor is not None:
            summed_loss = summed_loss * factor
        report = session.feed.report()
        telemetry.skipped(step, report.skipped)
        facts = StepFacts(
            epoch=epoch,
            rate=rate,
            samples=self.progress.samples,
            samples_in_step=session.samples_per_step,
            times=self.clock.stop(),
            cache_hit_rate=report.cache_hit_rate,
        )
        self.lagged.push(step, {"loss": summed_loss, "norm": norm, **self.stepper.loss_scale()}, facts)
        for result in self.lagged.pop_ready():
            self.publish(result)
        telemetry.bottleneck(step)
        if self.settings.gc_every and step % self.settings.gc_every == 0:
            gc.collect()
        return stop > 0, save > 0

    def smaller_batch(self) -> tuple[int, int] | None:
        """The batch size and accumulation to try if memory runs out; None if the step cannot be repeated."""
        if not self.oom_retries or not self.session.strategy.can_settle:
            return None
        return smaller(self.session.batch_size, self.session.grad_accum)

    def step_down(self, save_asked: bool) -> None:
        """Reduce the micro batches of all ranks, so that the step can be repeated with the same samples."""
        target = self.smaller_batch()
        assert target is not None
        former_size = self.session.batch_size
        self.oom_retries -= 1
        self.signals.save = self.signals.save or save_asked
        self.stepper.renew()
        self.session.set_batch(*target)
        _reset_peak_memory(self.world.device)
        self.telemetry.event(
            self.progress.step, "batch_reduced", cause="out of memory", batch_size=target[0], grad_accum=target[1]
        )
        self.telemetry.say(
            f"out of memory at step {self.progress.step}: micro batches of {target[0]} instead of {former_size}, "
            f"{target[1]} of them per step",
            error=True,
        )

    def publish(self, result: Result[StepFacts]) -> None:
        """Write a step's metrics. Raises FloatingPointError if its loss or gradients are not finite."""
        session, facts = self.session, result.note
        loss, norm = result.values["loss"] / self.world.size, result.values["norm"]
        times = facts.times.read(session.strategy.exchange_seconds(), result.waited)
        scaled = session.precision.scaler.is_enabled()
        samples_per_s = facts.samples_in_step / times.step
        tokens = session.objective.tokens_per_sample
        flops = session.flops_per_sample
        devices = self.world.size * session.strategy.devices
        mfu = samples_per_s * flops / (self.peak_flops * devices) if flops and self.peak_flops else None
        self.progress.metrics |= {"loss": loss, "grad_norm": norm}
        self.telemetry.step(
            result.step,
            {
                "epoch": facts.epoch,
                "loss": loss,
                "lr": facts.rate,
                "grad_norm": norm,
                "samples": facts.samples,
                "samples_per_s": samples_per_s,
                "tokens_per_s": samples_per_s * tokens if tokens else None,
                "mfu": mfu,
                "step_time": times.step,
                "data_time": times.data,
                "comm_time": times.exchange,
                "gpu_mem_peak": _peak_memory(self.world.device),
                "loss_scale": result.values.get("loss_scale"),
                "cache_hit_rate": facts.cache_hit_rate,
            },
        )
        self.telemetry.rank_timings(result.step, times)
        # With fp16, infinite gradients are normal while the scale settles: the scaler has skipped that update.
        if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
            raise FloatingPointError(f"loss is {loss} and the gradient norm {norm} at step {result.step}")
        if scaled and not math.isfinite(norm) and result.values["loss_scale"] < SMALLEST_LOSS_SCALE:
            raise FloatingPointError(
                f"gradients are not finite at step {result.step}, however small the scale of the loss: no update was"
                " made for many steps; use --precision bf16 or fp32, or a lower --lr"
            )

    def drain(self) -> None:
        """Wait for all steps that the device still computes, and publish them."""
        for result in self.lagged.pop_ready(force=True):
            self.publish(result)

    # --- between steps ------------------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float] | None:
        """Measure on held-out data. Returns the means as ``val/…``, or None if a stop was requested meanwhile."""
        self.drain()
        before = self.session.validation_batch
        batches = 0

        def stopping() -> bool:
            nonlocal batches
            batches += 1
            return bool(self.signals.stop)

        with self.signals.patient(lambda: batches):
            means, seconds = validate(self.session, stopping)
        if (batch := self.session.validation_batch) != before:
            self.telemetry.event(
                self.progress.step, "validation_batch_reduced", cause="out of memory", batch_size=batch
            )
            self.telemetry.say(f"out of memory in validation: batches of {batch} from here on", error=True)
        if means is None:
            return None
        metric = self.settings.best_metric
        if self.settings.best_checkpoint and metric not in means:
            raise SettingsError(f"--best-metric {metric} is not measured; it can be {', '.join(sorted(means))}")
        self.telemetry.skipped(self.progress.step, self.session.held_out.report().skipped)
        self.progress.metrics |= means
        self.telemetry.validation(self.progress.step, means, seconds)
        return means

    def answer(self) -> None:
        """Log the model's answers to held-out prompts."""
        self.drain()
        assert self.prompts is not None
        step = self.progress.step
        for answer in self.prompts.answers():
            self.telemetry.event(step, "answer", prompt=answer.prompt, answer=answer.answer)
            self.telemetry.say(f"step {step}: {answer.prompt!r} -> {answer.answer!r}")

    def save(
        self, *, periodic: bool = True, epoch: int | None = None, score: float | None = None, required: bool = False
    ) -> None:
        """Save the state after this step. An OSError ends the run only if the checkpoint is `required`."""
        self.drain()
        sharded = self.settings.sharded_checkpoints and self.world.backend
        try:
            with self.signals.patient(sign_of_life):
                self.checkpoints.save(
                    self.session.sharded_state if sharded else self.session.state,
                    step=self.progress.step,
                    periodic=periodic,
                    epoch=epoch,
                    phase=self.settings.phase,
                    score=score,
                    required=required,
                )
        finally:
            self.report_checkpoints()

    def report_checkpoints(self) -> None:
        """Log the checkpoints that were written, failed or skipped since the last call."""
        for outcome in self.checkpoints.poll():
            values = {
                "path": str(outcome.path),
                "seconds": outcome.seconds,
                "bytes": outcome.bytes,
                "error": outcome.error,
            }
            present = {name: value for name, value in values.items() if value is not None}
            self.telemetry.event(outcome.step, outcome.event, blocked_seconds=outcome.blocked_seconds, **present)
            if outcome.event == "checkpoint_failed":
                self.telemetry.say(f"checkpoint {outcome.path} was not written: {outcome.error}", error=True)
            for other in outcome.also:
                self.telemetry.event(outcome.step, "checkpoint", path=str(other))


@contextlib.contextmanager
def infrequent_gc() -> Iterator[None]:
    """Disable automatic garbage collection, and exempt the objects that exist now from it.

    Else ranks would collect in the middle of different steps, while all others wait.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _peak_memory(device: torch.device) -> int | None:
    """Peak bytes of tensors since `_reset_peak_memory`; None without CUDA."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
