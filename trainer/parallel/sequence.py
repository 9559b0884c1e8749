"""Sequence parallelism: between the layers that ranks share, each of them has a part of every sequence.

Korthikanti et al. (2022), "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198: norms,
dropout and residuals look at one token at a time. A pair of layers gathers its input, and scatters its sum over the
ranks: together that is as much traffic as the all-reduce of a pair that has its input whole.

In a block hidden states [batch, length, width] are DTensors, split along the length. That type is all that its modules
go by, so a recomputed block does what it did at first. A length that the ranks do not divide is not split: its hidden
states are plain tensors, which every rank has whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from trainer.models.blocks import transformer_blocks

_LENGTH = Shard(1)

OwnDraws = Callable[[], AbstractContextManager[None]]
"""Within it each rank draws random numbers of its own."""


@dataclass(frozen=True)
class _Parts:
    """Of a block: its norms, and what needs whole sequences. The norm behind the last block, by its place beside."""

    norms: tuple[str, ...]
    whole: tuple[str, ...]
    last_norm: str | None


# By class of transformers; another model's blocks may do more between their layers than what is known here.
_PARTS = {
    "LlamaDecoderLayer": _Parts(("input_layernorm", "post_attention_layernorm"), ("self_attn", "mlp"), "norm"),
    "GPT2Block": _Parts(("ln_1", "ln_2"), ("attn", "mlp"), "ln_f"),
    "BertLayer": _Parts(("attention.output.LayerNorm", "output.LayerNorm"), ("attention.self", "intermediate"), None),
}


def splits_sequences(model: nn.Module) -> bool:
    """Whether the blocks of a model can work on parts of sequences."""
    blocks = transformer_blocks(model)
    # Feed-forward layers by chunks of a sequence would gather chunks of parts.
    supported = all(any(kind.__name__ in _PARTS for kind in type(block).__mro__) for block in blocks)
    return bool(blocks) and supported and not any(getattr(block, "chunk_size_feed_forward", 0) for block in blocks)


def split_sequences(model: nn.Module, mesh: DeviceMesh, own_draws: OwnDraws) -> None:
    """Let the first block split its input along the length, and the last one, or the norm behind it, gather its own."""
    blocks, between = transformer_blocks(model), _Between(mesh)
    for block in blocks:
        parts = _parts(block)
        for name in parts.whole:
            block.get_submodule(name).register_forward_pre_hook(_gather_input, with_kwargs=True)
        for name in parts.norms:
            _norm_parts(block.get_submodule(name))
        for module in block.modules():
            if isinstance(module, nn.Dropout):
                _drop_in_parts(module, own_draws)
    norm = _norm_behind(model, blocks[-1])
    if norm is not None:
        _norm_parts(norm)
    members = [*blocks, *([norm] if norm is not None else [])]
    for member in members:
        member.register_forward_pre_hook(between.split if member is blocks[0] else between.enter)
        member.register_forward_hook(between.gather if member is members[-1] else between.leave)


class _Between:
    """What blocks pass to each other: plain tensors, so that hooks on blocks never see a DTensor."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._is_split = False  # of the forward pass that goes on; a block that is recomputed is within these hooks

    def split(self, block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = inputs[0]
        self._is_split = hidden.shape[1] % self._mesh.size() == 0
        if not self._is_split:
            return inputs
        everywhere = DTensor.from_local(hidden, self._mesh, [Replicate()], run_check=False)
        return (everywhere.redistribute(placements=[_LENGTH]), *inputs[1:])

    def enter(self, block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_as_part(inputs[0], self._mesh), *inputs[1:]) if self._is_split else inputs

    def leave(self, block: nn.Module, inputs: Any, hidden: Tensor) -> Tensor:
        return hidden.to_local() if isinstance(hidden, DTensor) else hidden

    def gather(self, block: nn.Module, inputs: Any, hidden: Tensor) -> Tensor:
        return summed(hidden) if isinstance(hidden, DTensor) else hidden


def leave_split(summands: DTensor) -> Tensor:
    """Reduce-scatter summands [batch, length, width] along the length; all-reduce them if it is not split."""
    if summands.shape[1] % summands.device_mesh.size():
        return summed(summands)
    return summands.redistribute(placements=[_LENGTH])


def summed(summands: DTensor) -> Tensor:
    """All-reduce summands [batch, length, width]."""
    whole: Tensor = summands.redistribute(placements=[Replicate()]).to_local()
    return whole


def with_summed_gradient(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The tensor, which is equal on all ranks; in backward, all-reduce the summands of its gradient."""
    everywhere = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    own: Tensor = everywhere.to_local(grad_placements=[Partial()])
    return own


def _parts(block: nn.Module) -> _Parts:
    return next(_PARTS[kind.__name__] for kind in type(block).__mro__ if kind.__name__ in _PARTS)


def _norm_behind(model: nn.Module, last_block: nn.Module) -> nn.Module | None:
    name, parts = next(name for name, module in model.named_modules() if module is last_block), _parts(last_block)
    owner = model.get_submodule(".".join(name.split(".")[:-2]))
    return None if parts.last_norm is None else owner.get_submodule(parts.last_norm)


def _gather_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All-gather once for all layers inside, as a DTensor: in backward it reduce-scatters their gradients."""

    def gathered(hidden: Tensor) -> Tensor:
        return hidden.redistribute(placements=[Replicate()]) if isinstance(hidden, DTensor) else hidden

    if args:
        return (gathered(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": gathered(kwargs["hidden_states"])}


def _norm_parts(norm: nn.Module) -> None:
    whole = norm.forward

    def forward(hidden: Tensor) -> Tensor:
        if not isinstance(hidden, DTensor):
            result: Tensor = whole(hidden)
            return result
        shared = {name: with_summed_gradient(value, hidden.device_mesh) for name, value in norm.named_parameters()}
        own = SimpleNamespace(**{**vars(norm), **shared})
        return _as_part(type(norm).forward(own, hidden.to_local()), hidden.device_mesh)

    norm.forward = forward


def _drop_in_parts(dropout: nn.Dropout, own_draws: OwnDraws) -> None:
    whole = dropout.forward

    def forward(hidden: Tensor) -> Tensor:
        if not isinstance(hidden, DTensor):
            return whole(hidden)
        if not (dropout.p and dropout.training):
            return hidden
        with own_draws():
            return _as_part(whole(hidden.to_local()), hidden.device_mesh)

    dropout.forward = forward  # type: ignore[method-assign, assignment]


def _as_part(local: Tensor, mesh: DeviceMesh) -> Tensor:
    return DTensor.from_local(local, mesh, [_LENGTH], run_check=False)
