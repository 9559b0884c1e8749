"""Tensor parallelism: neighbouring ranks share every layer, and rows of such ranks share the data as FSDP does.

Ranks that share layers take the same samples, and must draw the same random numbers (dropout); but for what each has
a part of, between the two halves of a pair, where they must draw different ones.

`plan` says which layers of known language models are cut by their outputs, and which by their inputs. Shoeybi et al.
(2019), "Megatron-LM", arXiv:1909.08053: a pair of matrices needs one all-reduce when the first is cut by its outputs
(columns) and the second by its inputs (rows).

GPT-2 has queries, keys and values in one matrix, of which a rank's heads are three strips. Every rank keeps all of it,
multiplies with its strips alone, and gathers the gradients of the others.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.parallel import collectives
from trainer.parallel.fsdp import Fsdp, shard_model
from trainer.tasks.objective import Objective
from trainer.world import World

Cut = Literal["outputs", "inputs", "strips"]  # strips: the outputs of a rank's heads, of a matrix that stays whole

# Llama, BERT and GPT-2.
_STRIPS = re.compile(r"(^|\.)attn\.c_attn$")
_HEADS = [
    (re.compile(r"(^|\.)self_attn\.[qkv]_proj$"), re.compile(r"(^|\.)self_attn\.o_proj$")),
    (re.compile(r"(^|\.)attention\.self\.(query|key|value)$"), re.compile(r"(^|\.)attention\.output\.dense$")),
    (_STRIPS, re.compile(r"(^|\.)attn\.c_proj$")),
]
_FEED_FORWARD = [
    (re.compile(r"(^|\.)mlp\.(gate|up)_proj$"), re.compile(r"(^|\.)mlp\.down_proj$")),
    (re.compile(r"(^|\.)intermediate\.dense$"), re.compile(r"(^|\.)\d+\.output\.dense$")),
    (re.compile(r"(^|\.)mlp\.c_fc$"), re.compile(r"(^|\.)mlp\.c_proj$")),
]


def plan(model: nn.Module, ranks: int) -> dict[str, Cut]:
    """How to cut which layers, by module name.

    Raises SettingsError for a model with no such layers, and for heads or widths that `ranks` does not divide.
    """
    cuts: dict[str, Cut] = {}
    for pairs in (_HEADS, _FEED_FORWARD):
        for by_outputs, by_inputs in pairs:
            for name, _ in model.named_modules():
                if by_outputs.search(name):
                    cuts[name] = "strips" if by_outputs is _STRIPS else "outputs"
                elif by_inputs.search(name):
                    cuts[name] = "inputs"
    if not cuts:
        raise SettingsError(
            "--tensor-parallel: no layers to share in this model; it knows those of Llama, BERT and GPT-2"
        )
    if any(pair[0].search(name) for pair in _HEADS for name in cuts):
        _check_heads(model, ranks)
    for name, cut in cuts.items():
        width = _width(model.get_submodule(name), cut)
        if width % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide the {width} {cut} of {name}")
    return cuts


def _check_heads(model: nn.Module, ranks: int) -> None:
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, key, None)
        if isinstance(heads, int) and heads % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide the model's {key}, {heads}")


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer keeps its weight as [inputs, outputs], as GPT-2's do."""
    return not isinstance(layer, nn.Linear)


def _width(layer: nn.Module, cut: Cut) -> int:
    weight = layer.get_parameter("weight")
    return int(weight.shape[0] if (cut != "inputs") != is_transposed(layer) else weight.shape[1])


class TensorParallel(Fsdp):
    """Ranks 0 .. n-1 share layers, and so do ranks n .. 2n-1; with no more ranks than that nothing else is sharded."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        self.data_rank = world.rank // settings.tensor_parallel
        self.data_ranks = world.size // settings.tensor_parallel
        _split_groups(self.optimizer)

    def _shard_model(self, settings: Settings) -> None:
        model, shared_by = self.objective.model, settings.tensor_parallel
        cuts = plan(model, shared_by)
        shape = (self.world.size // shared_by, shared_by)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("data", "layer"))
        parallelize_module(
            model, mesh["layer"], {name: _style(model.get_submodule(name), cut) for name, cut in cuts.items()}
        )
        for name, cut in cuts.items():
            if cut == "strips":
                attention: Any = model.get_submodule(name.rpartition(".")[0])
                attention.num_heads //= shared_by
                attention.split_size //= shared_by
        if settings.dropout:
            own = _OwnDraws(self.world.device, self.world.rank % shared_by)
            for name, cut in cuts.items():
                model.get_submodule(name).register_forward_pre_hook(own.end if cut == "inputs" else own.begin)
        if shape[0] > 1:
            shard_model(model, mesh["data"], settings)


class _OwnDraws:
    """Random numbers of a rank's own from the first layer of a pair to the second one, in training.

    They begin with a number that all ranks of a layer draw alike, so that nothing more has to be saved or recomputed.
    """

    def __init__(self, device: torch.device, rank: int) -> None:
        self._generator = (
            torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
        )
        self._rank = rank
        self._shared: Tensor | None = None

    def begin(self, layer: nn.Module, inputs: Any) -> None:
        if layer.training and self._shared is None:
            seed = int(torch.randint(2**62, ()))
            self._shared = self._generator.get_state()
            self._generator.manual_seed(seed + self._rank)

    def end(self, layer: nn.Module, inputs: Any) -> None:
        if self._shared is not None:
            self._generator.set_state(self._shared)
            self._shared = None


def _style(layer: nn.Module, cut: Cut) -> ParallelStyle:
    if cut == "strips":
        return _Strips()
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

        def distribute(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
            for key, placement in (("weight", weight), ("bias", bias)):
                layer.register_parameter(
                    key, nn.Parameter(distribute_tensor(layer.get_parameter(key), mesh, [placement]))
                )

        def enter(layer: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            return (DTensor.from_local(inputs[0], mesh, [entering], run_check=False), *inputs[1:])

        def leave(layer: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
            result: Tensor = output.redistribute(placements=[leaving]).to_local()
            return result

        return distribute_module(module, device_mesh, distribute, enter, leave)  # type: ignore[arg-type]


class _Strips(ParallelStyle):
    """A transposed layer of queries, keys and values together, of which a rank computes those of its heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def strips(whole: Tensor) -> Tensor:
            """[…, 3 * width] to […, 3 * width / ranks]; in backward, gathers what the other ranks have."""
            apart = whole.view(*whole.shape[:-1], 3, -1)
            everywhere = DTensor.from_local(apart, device_mesh, [Replicate()], run_check=False)
            own: Tensor = everywhere.redistribute(placements=[Shard(apart.dim() - 1)]).to_local()
            return own.flatten(-2)

        def forward(inputs: Tensor) -> Tensor:
            # The same on all ranks, each of which has a part of its gradient.
            entered = DTensor.from_local(inputs, device_mesh, [Replicate()], run_check=False)
            rows = entered.to_local(grad_placements=[Partial()]).flatten(0, -2)
            weight, bias = strips(module.get_parameter("weight")), strips(module.get_parameter("bias"))
            return torch.addmm(bias, rows, weight).view(*inputs.shape[:-1], -1)

        module.forward = forward
        return module


def _split_groups(optimizer: torch.optim.Optimizer) -> None:
    """One kernel steps many parameters at once, and takes only those that are sharded over the same ranks."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        by_mesh: dict[DeviceMesh | None, list[tuple[str, Tensor]]] = {}
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            by_mesh.setdefault(collectives.mesh_of(parameter), []).append((name, parameter))
        for members in by_mesh.values():
            names, parameters = zip(*members, strict=True)
            groups.append({**group, "params": list(parameters), "param_names": list(names)})
    optimizer.param_groups[:] = groups
