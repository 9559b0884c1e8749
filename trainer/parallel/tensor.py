"""Tensor parallelism: neighbouring ranks share every layer, and rows of such ranks share the data as FSDP does.

Ranks that share layers take the same samples, and must draw the same random numbers (dropout); but for what each has
a part of, between the two halves of a pair, where they must draw different ones.

`plan` says which layers of known language models are cut by their outputs, and which by their inputs. Shoeybi et al.
(2019), "Megatron-LM", arXiv:1909.08053: a pair of matrices needs one all-reduce when the first is cut by its outputs
(columns) and the second by its inputs (rows).

GPT-2 has queries, keys and values in one matrix, of which a rank's heads are three strips. Every rank keeps all of it,
multiplies with its strips alone, and gathers the gradients of the others.

Between the pairs `sequence` splits what is left.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.parallel import collectives
from trainer.parallel.fsdp import Fsdp, shard_model
from trainer.parallel.sequence import leave_split, split_sequences, splits_sequences, summed, with_summed_gradient
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
    _check_between(model, cuts)
    if any(pair[0].search(name) for pair in _HEADS for name in cuts):
        _check_heads(model, ranks)
    for name, cut in cuts.items():
        width = _width(model.get_submodule(name), cut)
        if width % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide the {width} {cut} of {name}")
    return cuts


def _check_between(model: nn.Module, cuts: dict[str, Cut]) -> None:
    """Raises SettingsError for parameters between the two layers of a pair, such as norms of queries: they work on a
    rank's part, and each rank would have another gradient of them."""
    for around in {name.rpartition(".")[0] for name, cut in cuts.items() if cut != "inputs"}:
        for name, _ in model.get_submodule(around).named_parameters(prefix=around):
            if name.rpartition(".")[0] not in cuts:
                raise SettingsError(
                    f"--tensor-parallel cannot share the layers of this model: {name} lies between them"
                )


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
        if settings.compile != "off":
            # A rank's slice of a tensor is compiled in, but in this cache torch 2.13 has the same key for all ranks.
            torch._functorch.config.enable_autograd_cache = False
        super().__init__(settings, objective, world)
        self.data_rank = world.rank // settings.tensor_parallel
        self.data_ranks = world.size // settings.tensor_parallel
        _split_groups(self.optimizer)

    def _shard_model(self, settings: Settings) -> None:
        model, shared_by = self.objective.model, settings.tensor_parallel
        cuts = plan(model, shared_by)
        shape = (self.world.size // shared_by, shared_by)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("data", "layer"))
        layer = mesh["layer"]  # one object: torch 2.13 does not compile what meets another equal one
        splits = splits_sequences(model)
        styles = {name: _style(cut, splits) for name, cut in cuts.items()}
        parallelize_module(model, layer, styles)
        for name, cut in cuts.items():
            if cut == "strips":
                attention: Any = model.get_submodule(name.rpartition(".")[0])
                attention.num_heads //= shared_by
                attention.split_size //= shared_by
        own = _OwnDraws(self.world.device, self.world.rank % shared_by)
        if settings.dropout:
            for name, cut in cuts.items():
                model.get_submodule(name).register_forward_pre_hook(own.end if cut == "inputs" else own.begin)
        if splits:
            split_sequences(model, layer, own.alone)
        if shape[0] > 1:
            shard_model(model, mesh["data"], settings)


class _OwnDraws:
    """Random numbers of a rank's own in training: within `alone`, and from the first layer of a pair to the second one.

    They begin with a number that all ranks of a layer draw alike, so that nothing more has to be saved or recomputed.
    """

    def __init__(self, device: torch.device, rank: int) -> None:
        self._generator = (
            torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
        )
        self._rank = rank
        self._shared: Tensor | None = None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        shared = self._start()
        try:
            yield
        finally:
            # Also where recomputation has all that it needs, and stops here.
            self._generator.set_state(shared)

    def begin(self, layer: nn.Module, inputs: Any) -> None:
        if layer.training and self._shared is None:
            self._shared = self._start()

    def end(self, layer: nn.Module, inputs: Any) -> None:
        if self._shared is not None:
            self._generator.set_state(self._shared)
            self._shared = None

    def _start(self) -> Tensor:
        """The state of what all ranks draw from, which is left."""
        seed = int(torch.randint(2**62, ()))
        shared = self._generator.get_state()
        self._generator.manual_seed(seed + self._rank)
        return shared


def _style(cut: Cut, splits: bool) -> ParallelStyle:
    return _Strips() if cut == "strips" else _Half(cut, splits)


class _Half(ParallelStyle):
    """Of a pair of layers the one that is cut by its outputs, or the one that is cut by its inputs.

    With `splits` a rank has only its part of the sequences behind the second one. torch's ColwiseParallel and
    RowwiseParallel know neither of lengths that are not split nor of layers that keep their weight transposed.
    """

    def __init__(self, cut: Cut, splits: bool) -> None:
        super().__init__()
        self._by_outputs = cut == "outputs"
        self._splits = splits

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight = Shard(int(self._by_outputs == is_transposed(module)))
        bias, entering = (Shard(0), Replicate()) if self._by_outputs else (Replicate(), Shard(-1))

        def distribute(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
            for key, whole in list(layer.named_parameters()):
                part = distribute_tensor(whole, mesh, [weight if key == "weight" else bias])
                layer.register_parameter(key, nn.Parameter(part, requires_grad=whole.requires_grad))

        def enter(layer: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            if isinstance(inputs[0], DTensor):
                return inputs
            return (DTensor.from_local(inputs[0], mesh, [entering], run_check=False), *inputs[1:])

        def leave(layer: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
            if self._by_outputs:
                result: Tensor = output.redistribute(placements=[Shard(-1)]).to_local()
                return result
            return leave_split(output) if self._splits else summed(output)

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
            if isinstance(inputs, DTensor):
                entered: Tensor = inputs.to_local(grad_placements=[Partial()])
            else:
                entered = with_summed_gradient(inputs, device_mesh)
            weight, bias = strips(module.get_parameter("weight")), strips(module.get_parameter("bias"))
            return torch.addmm(bias, entered.flatten(0, -2), weight).view(*inputs.shape[:-1], -1)

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
