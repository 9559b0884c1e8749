"""The training loop of one phase: steps, what is due after each, and the end or stop."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.answering import Prompts
from trainer.batch_search import largest_batch
from trainer.checkpoints import Checkpointer, Need, sign_of_life
from trainer.faults import Injector
from trainer.session import PhaseSession
from trainer.signals import Signals
from trainer.stepping import Stepper, reset_peak_memory
from trainer.telemetry.telemetry import Telemetry
from trainer.validation import validate


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
        self.stepper = Stepper(session, telemetry, signals, faults)
        self.results = self.stepper.results
        self.prompts = Prompts(session) if session.settings.answer_every else None

    def train(self, *, last_phase: bool) -> PhaseEnd:
        """Train until the last step of the phase, or until a stop signal (collective).

        Raises FloatingPointError if a loss or gradient is not finite, before anything of that step is saved.
        """
        settings = self.settings
        session = self.session
        self.world.wait_for(max(settings.timeout, settings.start_timeout))
        if not session.batches.size:
            size = largest_batch(self.stepper)
            session.batches = session.batches_up_to(size)
            self.telemetry.event(self.progress.step, "batch_found", batch_size=session.batches.size)
            self.telemetry.say(
                f"the largest micro batch that fits has {size} samples: {session.samples_per_step} samples per step, "
                f"in micro batches of {session.batches.size}"
            )
        session.set_batches(session.batches)
        reset_peak_memory(self.world.device)
        with infrequent_gc() if settings.gc_every else contextlib.nullcontext():
            return self.steps(last_phase)

    def steps(self, last_phase: bool) -> PhaseEnd:
        """Do the remaining steps of the phase, with what is due after each."""
        settings = self.settings
        session = self.session
        first = self.progress.step + 1
        while session.phase_step < settings.steps:
            epoch = session.epoch
            stop, save = self.stepper.step()
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
        self.results.drain()
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
        self.results.drain()
        self.signals.reached()
        self.save("required", epoch=epoch)
        return PhaseEnd(self.signals.stop or "signal on another rank", {})

    # --- between steps ------------------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float] | None:
        """Measure on held-out data. Returns the means as ``val/…``, or None if a stop was requested meanwhile."""
        self.results.drain()
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
        self.results.drain()
        assert self.prompts is not None
        prompts = self.prompts
        step = self.progress.step
        with self.signals.patient(lambda: prompts.tokens):
            answers = prompts.answers()
        for prompt, answer in answers:
            self.telemetry.event(step, "answer", prompt=prompt, answer=answer)
            self.telemetry.say(f"step {step}: {prompt!r} -> {answer!r}")

    def save(self, need: Need, *, epoch: int | None = None, score: float | None = None) -> None:
        """Save the state after this step under all names that apply, if any."""
        if need == "none" and epoch is None and score is None:
            return
        self.results.drain()
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
