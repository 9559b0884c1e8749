"""The row of blocks in which a network repeats itself, for sharding and for activation checkpointing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.config.schema import Recompute
from trainer.errors import SettingsError

# Their results are expensive to compute, and no larger than what is computed from them.
_ATEN = torch.ops.aten
_KEPT = {
    *(_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.convolution.default),
    *(_ATEN._scaled_dot_product_flash_attention.default, _ATEN._scaled_dot_product_efficient_attention.default),
    *(_ATEN._scaled_dot_product_cudnn_attention.default, _ATEN._scaled_dot_product_flash_attention_for_cpu.default),
}


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network in order; empty if there are none.

    They are the children of the list or sequence that holds the most parameters, of those whose children all have one
    class. A block that is nothing but such a row itself, like a stage of a ResNet, counts as its children.
    """
    # Of nested rows with equally many parameters the outer one comes first.
    row = max((module for module in model.modules() if _is_row(module)), key=_parameters, default=None)
    if row is None:
        return []
    return [block for child in row.children() for block in _spread(child)]


def _spread(block: nn.Module) -> list[nn.Module]:
    inside = list(block.children())
    if len(inside) == 1 and _is_row(inside[0]):
        return [inner for child in inside[0].children() for inner in _spread(child)]
    return [block]


def _is_row(module: nn.Module) -> bool:
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    return is_list and len({type(child) for child in module.children()}) == 1 and _parameters(module) > 0


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def matrices_of_blocks(model: nn.Module) -> frozenset[str]:
    """The names of the matrices in the repeated blocks: neither embeddings, nor heads, nor convolutions."""
    inside = {id(parameter) for block in transformer_blocks(model) for parameter in block.parameters()}
    parameters = model.named_parameters()
    return frozenset(name for name, parameter in parameters if parameter.dim() == 2 and id(parameter) in inside)


def apply_recompute(model: nn.Module, mode: Recompute) -> None:
    """Set which blocks recompute in training: none, every other one or all; with ``operations`` all but `_KEPT`.

    Blocks change their class, so that parameters keep their names, and hooks such as those of FSDP stay outside.
    Dropout and batch statistics are those of the first pass. Raises SettingsError for a model without repeated blocks.
    """
    blocks = transformer_blocks(model)
    if mode != "none" and not blocks:
        raise SettingsError("gradient_checkpointing: the model has no row of equal blocks to recompute; set it to none")
    for number, block in enumerate(blocks):
        if mode != "none" and not isinstance(block, _Recomputing):
            # All blocks, also those that will not recompute: a row of blocks stays one of a single class.
            block.__class__ = _recomputing(type(block))  # type: ignore[arg-type]
        if isinstance(block, _Recomputing):
            block.recompute = mode in ("full", "operations") or (mode == "selective" and number % 2 == 0)
            block.keeps_products = mode == "operations"


class _Recomputing(nn.Module):
    """Mixin in front of a block's class: forward keeps the block's inputs only, and backward calls it again."""

    recompute: bool
    keeps_products: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inner = super().forward
        if not (self.recompute and self.training and torch.is_grad_enabled()):
            return inner(*args, **kwargs)
        # A compiler sees that forward runs twice, and lets statistics change once.
        compiling = torch.compiler.is_compiling()
        norms = [] if compiling else [module for module in self.modules() if isinstance(module, _BatchNorm)]
        if not norms and not self.keeps_products:
            return checkpoint(inner, *args, use_reentrant=False, **kwargs)
        contexts = functools.partial(_contexts, norms, self.keeps_products)
        return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(norms: list[_BatchNorm], keeps_products: bool) -> tuple[Any, Any]:
    """Contexts of the first pass through a block and of the second one."""
    first = contextlib.nullcontext()
    second: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if keeps_products:
        first, second = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    if norms:
        second = _statistics_kept(norms, second)
    return first, second


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operation in _KEPT:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@contextlib.contextmanager
def _statistics_kept(norms: list[_BatchNorm], inner: Any) -> Iterator[None]:
    """Let norms update copies of their running statistics inside, so that a batch is not counted twice."""
    originals = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update({name: buffer.clone() for name, buffer in norm._buffers.items() if buffer is not None})
    try:
        with inner:
            yield
    finally:
        for norm, buffers in zip(norms, originals, strict=True):
            norm._buffers.update(buffers)


@functools.cache
def _recomputing(kind: type[nn.Module]) -> type[_Recomputing]:
    return type(f"Recomputing{kind.__name__}", (_Recomputing, kind), {})
