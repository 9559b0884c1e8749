"""One optimizer step: gradients of all micro batches, agreed on by all ranks, and the update."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.batch import is_out_of_memory
from trainer.faults import Injector
from trainer.precision import forget_compiled
from trainer.session import PhaseSession
from trainer.telemetry.timing import StepTimer


class Stepper:
    """Does the arithmetic of steps on one rank; what they are good for is the loop's business."""

    def __init__(self, session: PhaseSession, faults: Injector, clock: StepTimer) -> None:
        self._session = session
        self._faults = faults
        self._clock = clock
        self._weight = torch.zeros(())

    def gradients(self, step: int, *, survive: bool) -> Tensor | None:
        """Forward and backward of a step's micro batches: the sum [] of their share of the mean loss, on the device.

        None where memory ran out and `survive` is set: this rank has then taken part in what the others were
        waiting for, and waits for their vote.
        """
        session, strategy = self._session, self._session.strategy
        total = torch.zeros((), device=session.world.device)
        self._weight = torch.zeros_like(total)
        try:
            for micro in range(session.grad_accum):
                with strategy.accumulate(last=micro == session.grad_accum - 1):
                    poison = micro == 0 and self._faults.before_step(step, session.batch_size)
                    with self._clock.data():
                        fields = session.feed.next()
                    if session.objective.weighed:
                        self._weight += session.objective.weight(fields) / session.grad_accum
                    with session.precision.autocast():
                        loss = strategy.loss(fields) / session.grad_accum
                    if poison:
                        loss = loss * math.nan
                    session.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                    total += loss.detach()
            return total
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
        # Only here the error, whose traceback holds the activations, is gone.
        strategy.settle()
        return None

    def renew(self) -> None:
        """On all ranks, after a step in which one ran out of memory: gives memory back and gets ready for another."""
        self._session.strategy.renew()
        forget_compiled(self._session.settings)
        if self._session.world.device.type == "cuda":
            torch.cuda.empty_cache()

    def unscale(self) -> None:
        """Gradients as they are, without the scale that fp16 needs."""
        self._session.precision.scaler.unscale_(self._session.strategy.optimizer)

    def weigh(self) -> Tensor | None:
        """Where the objective is weighed: gradients, and the factor [] for the loss, of what counts alone (collective).

        So everything that counts does so alike, in whichever micro batch and on whichever rank it is.
        """
        session = self._session
        if not session.objective.weighed:
            return None
        weight = self.summed_loss(self._weight) / session.world.size
        factor = 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny ** 0.5)  # nothing counts: no gradients either
        gradients = list(session.strategy.local_gradients().values())
        if gradients:
            torch._foreach_mul_(gradients, factor)
        return factor

    def update(self) -> Tensor:
        """Clips, steps the optimizer and what follows it; returns the norm [] before clipping, on the device."""
        session, strategy, scaler = self._session, self._session.strategy, self._session.precision.scaler
        norm = strategy.clip(session.settings.grad_clip)
        scaler.step(strategy.optimizer)
        scaler.update()
        strategy.clear_gradients()
        strategy.after_update(session.progress.step)
        if session.ema:
            session.ema.update(session.progress.step)
        return norm

    def loss_scale(self) -> dict[str, Tensor]:
        """With fp16 the scale [] that the next step takes, on the device; to ask the scaler for it would be to wait."""
        scaler = self._session.precision.scaler
        one = torch.ones((), device=self._session.world.device)
        return {"loss_scale": scaler.scale(one)} if scaler.is_enabled() else {}

    def summed_loss(self, total: Tensor) -> Tensor:
        """The sum [] of all ranks' totals, on the device; the host does not wait for it."""
        world = self._session.world
        if world.backend:
            dist.all_reduce(total, group=world.group)
        return total
