"""The training loop of one phase: steps, validation, checkpoints, and leaving in good order."""

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

# Below it the loss of fp16 vanishes before its gradients become finite: those come from the model, not from the scale.
SMALLEST_LOSS_SCALE = 2.0**-24


@dataclass(frozen=True)
class StepNote:
    """What the host knows of a step while the device may still be busy with it."""

    epoch: int
    rate: float
    samples: int
    samples_in_step: int
    times: Pending
    cache_hit_rate: float | None


@dataclass(frozen=True)
class PhaseEnd:
    """How a phase ended: `stopped` is the signal that asked for it, empty if all steps are done."""

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
        self.lagged: Lagged[StepNote] = Lagged(session.world.device)
        self.oom_retries = session.settings.oom_retries
        self.peak_flops = peak_of(session.settings, session.world.device)
        self.prompts = Prompts(session) if session.settings.answer_every else None

    def train(self, *, last_phase: bool) -> PhaseEnd:
        """To the last step of the phase, or to a stop signal.

        Raises FloatingPointError, before anything is saved, where a loss or the gradients of a step are not finite.
        """
        settings, session = self.settings, self.session
        self.world.wait_for(max(settings.timeout, settings.start_timeout))
        if not session.batch_size:
            session.batch_size = largest_batch(session, self.stepper)
            self.telemetry.event(self.progress.step, "batch_found", batch_size=session.batch_size)
            self.telemetry.say(f"the largest micro batch that fits has {session.batch_size} samples")
        session.set_batch(session.batch_size, session.grad_accum)
        _restart_peak_memory(self.world.device)
        with collecting_rarely() if settings.gc_every else contextlib.nullcontext():
            return self.steps(last_phase)

    def steps(self, last_phase: bool) -> PhaseEnd:
        """The steps that are left, and how the phase ended."""
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
            ended = epoch if session.epoch > epoch else None
            if stop:
                return self.stop(ended)
            periodic = save or bool(settings.checkpoint_every and step % settings.checkpoint_every == 0)
            if not done and (periodic or ended is not None or score is not None):
                self.save(periodic=periodic, epoch=ended, score=score)
            if done:
                return self.finish(ended, last_phase)
            self.tell_of_checkpoints()
        return self.finish(None, last_phase)

    def finish(self, epoch: int | None, last_phase: bool) -> PhaseEnd:
        """All steps are done: measures and saves the result. A phase that another follows may do without its file."""
        self.drain()
        self.signals.reached()
        means = self.validate()
        if means is None:
            return self.stop(epoch)
        self.save(epoch=epoch, score=means.get(self.settings.best_metric), required=last_phase)
        self.checkpoints.wait()
        self.tell_of_checkpoints()
        return PhaseEnd("", means)

    def stop(self, epoch: int | None) -> PhaseEnd:
        """As soon as possible: without a validation that is due."""
        self.drain()
        self.signals.reached()
        self.save(epoch=epoch, required=True)
        return PhaseEnd(self.signals.stop or "signal on another rank", {})

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self) -> tuple[bool, bool]:
        """One optimizer step; returns whether any rank was asked to stop, and to save."""
        session, world, telemetry = self.session, self.world, self.telemetry
        rate = session.schedule.advance()
        epoch = session.epoch
        self.progress.step += 1
        step = self.progress.step
        self.clock.start()
        with telemetry.observe(step, session.objective.model):
            while True:
                can_retry = self.smaller_batch() is not None
                total = self.stepper.gradients(step, survive=can_retry)
                save_asked, self.signals.save = self.signals.save, False
                # The only exchange of a step besides the gradients, and no rank's device is waited for in it.
                on_host = float(total) if total is not None and world.device.type == "cpu" else 0.0
                failed, stop, save, loss = world.vote(total is None, bool(self.signals.stop), save_asked, on_host)
                if not failed:
                    break
                self.step_down(save_asked)
            assert total is not None
            self.stepper.unscale()
            factor = self.stepper.weigh()
            if telemetry.wants_histograms(step):
                telemetry.gradients(step, session.strategy.local_gradients(), session.objective.model)
            self.progress.samples += session.samples_per_step
            norm = self.stepper.update()
        summed = self.stepper.summed_loss(total) if world.device.type == "cuda" else torch.tensor(loss)
        if factor is not None:
            summed = summed * factor
        report = session.feed.report()
        telemetry.skipped(step, report.skipped)
        note = StepNote(
            epoch=epoch,
            rate=rate,
            samples=self.progress.samples,
            samples_in_step=session.samples_per_step,
            times=self.clock.stop(),
            cache_hit_rate=report.cache_hit_rate,
        )
        self.lagged.push(step, {"loss": summed, "norm": norm, **self.stepper.loss_scale()}, note)
        for result in self.lagged.pop_ready():
            self.publish(result)
        telemetry.bottleneck(step)
        if self.settings.gc_every and step % self.settings.gc_every == 0:
            gc.collect()
        return stop > 0, save > 0

    def smaller_batch(self) -> tuple[int, int] | None:
        """What to step down to where memory runs out; None if that is for others to deal with."""
        if not self.oom_retries or not self.session.strategy.can_settle:
            return None
        return smaller(self.session.batch_size, self.session.grad_accum)

    def step_down(self, save_asked: bool) -> None:
        """Makes the micro batches of all ranks smaller, so that the step can be done again with the same samples."""
        target = self.smaller_batch()
        assert target is not None
        before = self.session.batch_size
        self.oom_retries -= 1
        self.signals.save = self.signals.save or save_asked
        self.stepper.renew()
        self.session.set_batch(*target)
        _restart_peak_memory(self.world.device)
        self.telemetry.event(
            self.progress.step, "batch_reduced", cause="out of memory", batch_size=target[0], grad_accum=target[1]
        )
        self.telemetry.say(
            f"out of memory at step {self.progress.step}: micro batches of {target[0]} instead of {before}, "
            f"{target[1]} of them per step",
            error=True,
        )

    def publish(self, result: Result[StepNote]) -> None:
        """A step's line. Raises FloatingPointError if its loss or gradients are not finite."""
        session, note = self.session, result.note
        loss, norm = result.values["loss"] / self.world.size, result.values["norm"]
        times = note.times.read(session.strategy.exchange_seconds(), result.waited)
        scaled = session.precision.scaler.is_enabled()
        samples_per_s = note.samples_in_step / times.step
        tokens = session.objective.tokens_per_sample
        flops = session.flops_per_sample
        devices = self.world.size * session.strategy.devices
        used = samples_per_s * flops / (self.peak_flops * devices) if flops and self.peak_flops else None
        self.progress.metrics |= {"loss": loss, "grad_norm": norm}
        self.telemetry.step(
            result.step,
            {
                "epoch": note.epoch,
                "loss": loss,
                "lr": note.rate,
                "grad_norm": norm,
                "samples": note.samples,
                "samples_per_s": samples_per_s,
                "tokens_per_s": samples_per_s * tokens if tokens else None,
                "mfu": used,
                "step_time": times.step,
                "data_time": times.data,
                "comm_time": times.exchange,
                "gpu_mem_peak": _peak_memory(self.world.device),
                "loss_scale": result.values.get("loss_scale"),
                "cache_hit_rate": note.cache_hit_rate,
            },
        )
        self.telemetry.rank_timings(result.step, times)
        # With fp16, infinite gradients are a part of finding the scale: the scaler has skipped that update.
        if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
            raise FloatingPointError(f"loss is {loss} and the gradient norm {norm} at step {result.step}")
        if scaled and not math.isfinite(norm) and result.values["loss_scale"] < SMALLEST_LOSS_SCALE:
            raise FloatingPointError(
                f"gradients are not finite at step {result.step}, however small the scale of the loss: no update was"
                " made for many steps; use --precision bf16 or fp32, or a lower --lr"
            )

    def drain(self) -> None:
        """Publishes the steps that the device has been given, all of them."""
        for result in self.lagged.pop_ready(force=True):
            self.publish(result)

    # --- now and then -------------------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float] | None:
        """Measures on held-out data; the means as ``val/…``, or None if a stop was asked for meanwhile."""
        self.drain()
        before = self.session.validation_batch
        means, seconds = validate(self.session, lambda: bool(self.signals.stop))
        if (batch := self.session.validation_batch) != before:
            self.telemetry.event(
                self.progress.step, "validation_batch_reduced", cause="out of memory", batch_size=batch
            )
            self.telemetry.say(f"out of memory in validation: batches of {batch} from here on", error=True)
        if means is None:
            return None
        wanted = self.settings.best_metric
        if self.settings.best_checkpoint and wanted not in means:
            raise SettingsError(f"--best-metric {wanted} is not measured; it can be {', '.join(sorted(means))}")
        self.telemetry.skipped(self.progress.step, self.session.held_out.report().skipped)
        self.progress.metrics |= means
        self.telemetry.validation(self.progress.step, means, seconds)
        return means

    def answer(self) -> None:
        """Shows what the model makes of held-out prompts."""
        self.drain()
        assert self.prompts is not None
        step = self.progress.step
        for one in self.prompts.answers():
            self.telemetry.event(step, "answer", prompt=one.prompt, answer=one.answer)
            self.telemetry.say(f"step {step}: {one.prompt!r} -> {one.answer!r}")

    def save(
        self, *, periodic: bool = True, epoch: int | None = None, score: float | None = None, required: bool = False
    ) -> None:
        """A checkpoint of the state after this step. A disk that refuses is survived, unless `required`."""
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
            self.tell_of_checkpoints()

    def tell_of_checkpoints(self) -> None:
        """Lines about checkpoints that were written, or not."""
        for one in self.checkpoints.poll():
            values = {"path": str(one.path), "seconds": one.seconds, "bytes": one.bytes, "error": one.error}
            known = {name: value for name, value in values.items() if value is not None}
            self.telemetry.event(one.step, one.event, blocked_seconds=one.blocked_seconds, **known)
            if one.event == "checkpoint_failed":
                self.telemetry.say(f"checkpoint {one.path} was not written: {one.error}", error=True)
            for other in one.also:
                self.telemetry.event(one.step, "checkpoint", path=str(other))


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect garbage only on request, and never again in objects that exist now.

    Else one rank or the other does so in the middle of a step, and all others wait for it.
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
    """The most memory that tensors took since the phase, or its batch size, began, in bytes; None without CUDA."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _restart_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
