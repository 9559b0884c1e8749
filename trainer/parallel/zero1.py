"""ZeRO stage 1: DDP with the optimizer's state sharded: each rank steps a part of the parameters.

Rajbhandari et al. (2020), "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv:1910.02054.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer.config import Settings
from trainer.models.blocks import matrices_of_blocks
from trainer.optim import optimizer_options, parameter_groups
from trainer.parallel.ddp import Ddp
from trainer.parallel.state import load_state_by_name, state_by_name
from trainer.parallel.strategy import OptimizerState


class _Layout(NamedTuple):
    """What a rank needs to receive a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


class Zero1(Ddp):
    """`optimizer` has all parameters, and its inner optimizer those of this rank. A step broadcasts the results."""

    optimizer: ZeroRedundancyOptimizer

    def _build_optimizer(self, settings: Settings) -> ZeroRedundancyOptimizer:
        kind, options = optimizer_options(settings)
        model = self.objective.model
        groups = parameter_groups(model.named_parameters(), settings, matrices_of_blocks(model))
        # Without names: groups are split over ranks, after which names would not match.
        nameless = [{**group, "params": [parameter for _, parameter in group["params"]]} for group in groups]
        return ZeroRedundancyOptimizer(
            nameless,
            optimizer_class=kind,
            process_group=self.world.group,
            # One broadcast per rank and step instead of one per parameter; its buffers support one memory order only.
            parameters_as_bucket_view=not settings.channels_last,
            **options,
        )

    def optimizer_state(self) -> OptimizerState:
        """The full state on rank 0, on the CPU; tensors are sent one at a time."""
        world = self.world
        own = state_by_name(self.optimizer.optim, self._names)
        layouts = world.gather({name: {key: _layout(value) for key, value in own[name].items()} for name in own})
        result: OptimizerState = {}
        for name in self._names.values():
            for owner, layout in enumerate(layouts):
                for key, form in layout.get(name, {}).items():
                    value = self._send_to_main(own.get(name, {}).get(key), form, owner)
                    if world.is_main:
                        result.setdefault(name, {})[key] = value
        return result

    def _send_to_main(self, value: Any, form: Any, owner: int) -> Any:
        """The owner's value on rank 0; undefined on the others."""
        if not isinstance(form, _Layout) or (owner == 0 and self.world.is_main):
            return form if not isinstance(form, _Layout) else value.detach().cpu()
        if owner == 0:
            return None
        if self.world.rank != owner:
            value = torch.empty(form.shape, dtype=form.dtype, device=form.device)
        sent: Tensor = value.contiguous()
        dist.broadcast(sent, src=owner, group=self.world.group)
        return sent.cpu()

    def load_optimizer_state(self, state: OptimizerState) -> None:
        load_state_by_name(self.optimizer.optim, self._names, state)


def _layout(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Layout(tuple(value.shape), value.dtype, value.device.type)
