"""Tensor parallelism: neighbouring ranks share every layer, and rows of such ranks share the data as FSDP does.

Shoeybi et al. (2019), "Megatron-LM", arXiv:1909.08053: of a pair of layers the first is cut by its outputs and the
second by its inputs. Korthikanti et al. (2022), "Reducing Activation Recomputation in Large Transformer Models",
arXiv:2205.05198: between the pairs a rank has a part of every sequence, [batch, length / ranks, width], so a pair
gathers its input and scatters its sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.models.blocks import transformer_blocks
from trainer.parallel.fsdp import Fsdp, shard_model
from trainer.tasks.objective import Objective
from trainer.world import World

_LENGTH = Shard(1)


@dataclass(frozen=True)
class _Plan:
    """Of a block: layers cut by their outputs and by their inputs, norms, and what needs whole sequences."""

    by_outputs: tuple[str, ...]
    by_inputs: tuple[str, ...]
    norms: tuple[str, ...]
    whole: tuple[str, ...]


_LLAMA = _Plan(
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
    ("self_attn.o_proj", "mlp.down_proj"),
    ("input_layernorm", "post_attention_layernorm"),
    ("self_attn", "mlp"),
)
_BERT = _Plan(
    ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
    ("attention.output.dense", "output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    ("attention.self", "intermediate"),
)
# By class of transformers; another model's blocks may do more between their layers than what is known here.
_PLANS = {
    "LlamaDecoderLayer": _LLAMA,
    "MistralDecoderLayer": _LLAMA,
    "Qwen2DecoderLayer": _LLAMA,
    "BertLayer": _BERT,
}


def plan_of(block: nn.Module) -> _Plan | None:
    """What ranks can share of a block, whose class may derive from a known one; None if nothing."""
    return next((_PLANS[kind.__name__] for kind in type(block).__mro__ if kind.__name__ in _PLANS), None)


def check_shareable(model: nn.Module, ranks: int, context: int) -> None:
    """Raise SettingsError for a model of unknown blocks, and for sizes that `ranks` does not divide."""
    blocks = transformer_blocks(model)
    if not blocks or any(plan_of(block) is None for block in blocks):
        raise SettingsError("--tensor-parallel knows the layers of Llama, Mistral, Qwen2 and BERT, not this model's")
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    sizes = {key: getattr(config, key, None) for key in ("num_attention_heads", "num_key_value_heads")}
    sizes |= {"intermediate_size": getattr(config, "intermediate_size", None), "--context": context}
    for name, size in sizes.items():
        if isinstance(size, int) and size % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide {name}, {size}")


class TensorParallel(Fsdp):
    """Ranks 0 .. n-1 share layers, and so do ranks n .. 2n-1."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        check_shareable(objective.model, settings.tensor_parallel, settings.context)
        if settings.compile != "off":
            # A rank's slice of a tensor is compiled in, but in this cache torch 2.13 has the same key for all ranks.
            torch._functorch.config.enable_autograd_cache = False
        super().__init__(settings, objective, world)
        self.data_rank = world.rank // settings.tensor_parallel
        self.data_ranks = world.size // settings.tensor_parallel
        _split_groups(self.optimizer)

    def _shard_model(self, settings: Settings) -> None:
        model = self.objective.model
        shared_by = settings.tensor_parallel
        shape = (self.world.size // shared_by, shared_by)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("data", "layer"))
        layer = mesh["layer"]  # one object: torch 2.13 does not compile what meets another equal one
        blocks = transformer_blocks(model)
        hooks = _Hooks(layer, self.world)
        for block in blocks:
            plan = plan_of(block)
            assert plan is not None
            styles: dict[str, ParallelStyle] = dict.fromkeys(plan.by_outputs, ColwiseParallel())
            styles |= dict.fromkeys(plan.by_inputs, RowwiseParallel(output_layouts=_LENGTH))
            styles |= dict.fromkeys(plan.norms, SequenceParallel(use_local_output=True))
            parallelize_module(block, layer, styles)
            for name in plan.whole:
                block.get_submodule(name).register_forward_pre_hook(hooks.gather_input, with_kwargs=True)
        blocks[0].register_forward_pre_hook(hooks.split_input)
        blocks[-1].register_forward_hook(hooks.gather_output)
        if settings.dropout:
            blocks[0].register_forward_pre_hook(hooks.draw_alone)
            blocks[-1].register_forward_hook(hooks.draw_alike)
        # It also sums up the gradients of what ranks of a layer have alike.
        shard_model(model, mesh["data"], settings)


class _Hooks:
    """Splitting and gathering hidden states [batch, length, width] along the length, and dropout between the two.

    There a rank draws random numbers of its own, which begin with one that all ranks of a layer draw alike.
    """

    def __init__(self, mesh: DeviceMesh, world: World) -> None:
        self._mesh = mesh
        cuda = world.device.type == "cuda"
        self._generator = torch.cuda.default_generators[world.device.index] if cuda else torch.default_generator
        self._shared: Tensor | None = None

    def draw_alone(self, block: nn.Module, inputs: Any) -> None:
        if block.training:
            seed = int(torch.randint(2**62, ()))
            self._shared = self._generator.get_state()
            self._generator.manual_seed(seed + self._mesh.get_local_rank())

    def draw_alike(self, block: nn.Module, inputs: Any, hidden: Tensor) -> None:
        if self._shared is not None:
            self._generator.set_state(self._shared)
            self._shared = None

    def split_input(self, block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        everywhere = DTensor.from_local(inputs[0], self._mesh, [Replicate()], run_check=False)
        return (everywhere.redistribute(placements=[_LENGTH]).to_local(), *inputs[1:])

    def gather_output(self, block: nn.Module, inputs: Any, hidden: Tensor) -> Tensor:
        return self._gathered(hidden).to_local()

    def gather_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gather once for all layers inside, as a DTensor: in backward it reduce-scatters their gradients."""
        if args:
            return (self._gathered(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._gathered(kwargs["hidden_states"])}

    def _gathered(self, part: Tensor) -> DTensor:
        parts = DTensor.from_local(part, self._mesh, [_LENGTH], run_check=False)
        return parts.redistribute(placements=[Replicate()])


def _split_groups(optimizer: torch.optim.Optimizer) -> None:
    """One kernel steps many parameters at once, and takes only those that are sharded over the same ranks."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        by_mesh: dict[DeviceMesh | None, list[tuple[str, Tensor]]] = {}
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            by_mesh.setdefault(mesh, []).append((name, parameter))
        for members in by_mesh.values():
            names, parameters = zip(*members, strict=True)
            groups.append({**group, "params": list(parameters), "param_names": list(names)})
    optimizer.param_groups[:] = groups
