"""The parts of an optimizer step: gradients of all micro batches, clipping, update."""

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
    """Computes steps on one rank. The loop decides on retries, and publishes the results."""

    def __init__(self, session: PhaseSession, faults: Injector, clock: StepTimer) -> None:
        self._session = session
        self._faults = faults
        self._clock = clock
        self._weight = torch.zeros(())

    def gradients(self, step: int, *, survive: bool) -> Tensor | None:
        """Run forward and backward of a step's micro batches. Returns their mean loss [], on the device.

        Returns None if memory ran out and `survive` is set. This rank has then taken part in the all-reduces that
        others wait for, so all ranks can go on to vote.
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
        # After the except block: the error's traceback keeps the activations alive.
        strategy.settle()
        return None

    def renew(self) -> None:
        """Release memory after a failed step, so that it can be repeated. Call it on all ranks."""
        self._session.strategy.renew()
        forget_compiled(self._session.settings)
        if self._session.world.device.type == "cuda":
            torch.cuda.empty_cache()

    def unscale(self) -> None:
        """Remove the fp16 loss scale from the gradients."""
        self._session.precision.scaler.unscale_(self._session.strategy.optimizer)

    def normalize_weights(self) -> Tensor | None:
        """Divide gradients by the mean weight of the micro batches of all ranks (collective).

        So every learnt token counts equally, in whichever micro batch and on whichever rank it is. Returns the factor
        [] for the loss; None if the objective has no weights.
        """
        session = self._session
        if not session.objective.weighed:
            return None
        weight = self.sum_over_ranks(self._weight) / session.world.size
        factor = 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny ** 0.5)  # weight 0: gradients are 0, too
        gradients = list(session.strategy.local_gradients().values())
        if gradients:
            torch._foreach_mul_(gradients, factor.to(gradients[0].device))  # of --cpu-offload: in host memory
        return factor

    def update(self) -> Tensor:
        """Clip gradients, step the optimizer and the averages. Returns the norm [] before clipping, on the device."""
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
        """The fp16 loss scale [] of the next step; on the device, because `get_scale` would wait for it."""
        scaler = self._session.precision.scaler
        one = torch.ones((), device=self._session.world.device)
        return {"loss_scale": scaler.scale(one)} if scaler.is_enabled() else {}

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """All-reduce a scalar [] in place, without waiting for the device."""
        world = self._session.world
        if world.backend:
            dist.all_reduce(value, group=world.group)
        return value
