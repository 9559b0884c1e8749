"""Post-local SGD: ranks step by themselves, and average their weights now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from trainer.collectives import broadcast_from_main
from trainer.config import Settings
from trainer.parallel.ddp import Ddp
from trainer.parallel.strategy import OptimizerState, load_state_by_name
from trainer.tasks.objective import Objective
from trainer.world import World


class LocalSgd(Ddp):
    """Post-local SGD: after --average-from steps of the phase, ranks step on their own gradients, and average weights.

    Lin et al. (2020), "Don't Use Large Mini-Batches, Use Local SGD", arXiv:1808.07217. What is measured or saved is one
    model: the average of the ranks, with which they go on.
    """

    optimizer: PostLocalSGDOptimizer

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        self._gradients = PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=world.group,
            subgroup=None,
            start_localSGD_iter=settings.average_from,
            post_local_gradient_allreduce=False,
        )
        super().__init__(settings, objective, world)
        self.can_settle = False  # a rank without memory would leave out an average

    def build_optimizer(self, settings: Settings) -> PostLocalSGDOptimizer:
        # torch averages after its first step behind the warm-up, too, where weights hardly differ.
        warmup = settings.average_from + settings.average_every - 1
        averager = PeriodicModelAverager(settings.average_every, warmup, self.world.group)
        return PostLocalSGDOptimizer(super().build_optimizer(settings), averager)

    def register_hook(self, wrapped: DistributedDataParallel) -> None:
        wrapped.broadcast_buffers = False  # in each forward, of which there are many between two averages
        wrapped.register_comm_hook(self._gradients, post_localSGD_hook)

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        self._average_weights()
        return super().measuring()

    def exchange_seconds(self) -> float | None:
        return None  # torch's hook does not tell

    # --- state: its tensors become those of all ranks, so that going on equals resuming -------------------------------

    def resume(self, steps: int) -> None:
        self._gradients.iter = steps
        self.optimizer.averager.step = steps

    def model_state(self) -> dict[str, Tensor]:
        self._average_weights()
        broadcast_from_main(self.objective.model.buffers(), self.world)
        return super().model_state()

    def optimizer_state(self) -> OptimizerState:
        state = super().optimizer_state()
        self._average(value for values in state.values() for key, value in values.items() if key != "step")
        return state

    def load_optimizer_state(self, state: OptimizerState) -> None:
        load_state_by_name(self.optimizer.optim, self.names, state)
        self.optimizer.param_groups = self.optimizer.optim.param_groups  # loading has made others

    def _average_weights(self) -> None:
        # Frozen ones are equal, and rounding would change them.
        self._average(parameter for parameter in self.names if parameter.requires_grad)

    @torch.no_grad()
    def _average(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace tensors by their means over the ranks, one at a time."""
        for tensor in tensors:
            if tensor is not None:  # SGD's momentum before the first step
                dist.all_reduce(tensor.div_(self.world.size), group=self.world.group)
