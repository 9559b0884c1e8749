"""Tensor parallelism: neighbouring ranks share every layer, and rows of such ranks share the data as FSDP does.

Ranks that share layers take the same samples, and must draw the same random numbers (dropout).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from trainer.config import Settings
from trainer.parallel import sharded
from trainer.parallel.fsdp import Fsdp, shard
from trainer.parallel.plans import Cut, is_transposed, plan
from trainer.tasks.objective import Objective
from trainer.world import World


class TensorParallel(Fsdp):
    """Ranks 0 .. n-1 share layers, and so do ranks n .. 2n-1; with no more ranks than that nothing else is spread."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        self.data_rank = world.rank // settings.tensor_parallel
        self.data_ranks = world.size // settings.tensor_parallel
        _split_groups(self.optimizer)

    def _spread(self, settings: Settings) -> None:
        model, shared_by = self.objective.model, settings.tensor_parallel
        cuts = plan(model, shared_by)
        shape = (self.world.size // shared_by, shared_by)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("data", "layer"))
        parallelize_module(
            model, mesh["layer"], {name: _style(model.get_submodule(name), cut) for name, cut in cuts.items()}
        )
        if shape[0] > 1:
            shard(model, mesh["data"], settings)


def _style(layer: nn.Module, cut: Cut) -> ParallelStyle:
    if is_transposed(layer):
        return _Transposed(cut)
    return ColwiseParallel() if cut == "outputs" else RowwiseParallel()


class _Transposed(ParallelStyle):
    """What ColwiseParallel and RowwiseParallel are to nn.Linear, for layers that keep their weight transposed."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self._cut = cut

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        by_outputs = self._cut == "outputs"
        weight, bias = (Shard(1), Shard(0)) if by_outputs else (Shard(0), Replicate())
        entering = Replicate() if by_outputs else Shard(-1)
        leaving = Shard(-1) if by_outputs else Replicate()

        def spread(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
            for key, placement in (("weight", weight), ("bias", bias)):
                layer.register_parameter(
                    key, nn.Parameter(distribute_tensor(layer.get_parameter(key), mesh, [placement]))
                )

        def enter(layer: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            return (DTensor.from_local(inputs[0], mesh, [entering], run_check=False), *inputs[1:])

        def leave(layer: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
            result: Tensor = output.redistribute(placements=[leaving]).to_local()
            return result

        return distribute_module(module, device_mesh, spread, enter, leave)  # type: ignore[arg-type]


def _split_groups(optimizer: torch.optim.Optimizer) -> None:
    """One kernel steps many parameters at once, and takes only those that are spread over the same ranks."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        by_mesh: dict[DeviceMesh | None, list[tuple[str, Tensor]]] = {}
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            by_mesh.setdefault(sharded.mesh_of(parameter), []).append((name, parameter))
        for members in by_mesh.values():
            names, parameters = zip(*members, strict=True)
            groups.append({**group, "params": list(parameters), "param_names": list(names)})
    optimizer.param_groups[:] = groups
