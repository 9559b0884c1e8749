"""FSDP2: parameters, gradients and optimizer state are sharded; a block's parameters are gathered while it computes.

Validation gathers, too, so all ranks must take the same number of held-out batches.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer import collectives
from trainer.config import Settings
from trainer.models.blocks import transformer_blocks
from trainer.models.deferred import first_values
from trainer.parallel.strategy import Strategy
from trainer.tasks.objective import Objective
from trainer.world import World


class Fsdp(Strategy):
    """Shards with FSDP2; its state is DTensors."""

    measures_alone = False

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        """Wrap the model, whose parameters on the meta device each rank initialises shard by shard.

        Otherwise the model is on the CPU or the world's device, and rank 0's weights are used.
        """
        self.objective = objective
        self.world = world
        deferred = any(parameter.is_meta for parameter in objective.model.parameters())
        if not deferred:
            collectives.broadcast_from_main(objective.model.state_dict().values(), world)
        # Sharding moves each block to the device, where only its shard stays.
        self._shard_model(settings)
        if deferred:
            device = torch.device("cpu") if settings.cpu_offload else world.device
            self._initialise(device)
        super().__init__(settings, objective, world)  # after sharding, which replaces parameters

    def _shard_model(self, settings: Settings) -> None:
        world = self.world
        self.shards = copy_ranks = settings.shard_ranks or self.world.size
        if copy_ranks < world.size:
            # Hybrid sharding by a two-dimensional mesh: gradients are averaged over the copies, too.
            shape = (world.size // copy_ranks, copy_ranks)
            mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("copies", "shards"))
        else:
            group = world.group or dist.group.WORLD
            assert group is not None
            mesh = DeviceMesh.from_group(group, world.device.type)
        shard_model(self.objective.model, mesh, settings)

    @torch.no_grad()
    def _initialise(self, device: torch.device) -> None:
        """Allocate the shards of parameters on the meta device, and initialise one block after another."""
        model = self.objective.model
        buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
        model.to_empty(device=device)
        for module, name, buffer in buffers:
            if buffer is not None:
                module._buffers[name] = buffer.to(self.world.device)
        for parameter, values in first_values(model):
            parameter.copy_(collectives.shard_like(values, parameter))

    # --- a step -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        model = self.objective.model
        self._free_gathered()
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
            model.set_is_last_backward(last)
        yield

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        self._free_gathered()
        # Buffers, such as batch statistics, are not sharded: until here every rank has those of its own batches.
        collectives.broadcast_from_main(self.objective.model.buffers(), self.world)
        yield
        self._free_gathered()

    # --- state --------------------------------------------------------------------------------------------------------

    def model_state(self) -> dict[str, Tensor]:
        self._free_gathered()
        return super().model_state()

    def _free_gathered(self) -> None:
        """Free gathered copies of weights, which are out of date once the shards are written to."""
        for module in self.objective.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def shard_model(model: nn.Module, mesh: DeviceMesh, settings: Settings) -> None:
    """Shard every repeated block by itself, and the rest as one more; gradients are reduced in fp32."""
    # The warning is about writing to the model's output, which no objective does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": settings.reshard_after_forward}
    if settings.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    # The model's output stays as it is: the objective takes to fp32 what it needs of it.
    options["mp_policy"] = MixedPrecisionPolicy()
    if settings.precision == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in transformer_blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
