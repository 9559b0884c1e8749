"""Floating-point operations of forward and backward, from a network's sizes or counted. Ask before it is sharded."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from trainer.models.own import ByteTransformer


def flops_per_token(model: nn.Module, context: int) -> float | None:
    """Operations per token of a window of `context`; None for networks without known attention.

    6 N + 12 L H Q T of Chowdhery et al., "PaLM", 2022, appendix B: attention counts in full, causal or not. Neither
    recomputation does, nor tables that are only looked up in.
    """
    attention = _attention(model)
    if attention is None:
        return None
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    # An output layer may be tied to the table of tokens.
    tables -= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter not in tables)
    return 6.0 * matrices + 12.0 * attention * context


def _attention(model: nn.Module) -> int | None:
    """Layers, times heads, times the size of a head."""
    for module in model.modules():
        if isinstance(module, ByteTransformer):
            return len(module.stack.blocks) * module.bytes.embedding_dim
        config: Any = getattr(module, "config", None)
        layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
        if isinstance(layers, int) and isinstance(heads, int):
            size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
            if size:
                return layers * heads * int(size)
    return None


def flops_per_sample(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Operations for one float input of `shape`, counted without computing: products, convolutions, attention."""
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    # Shared parameters stay shared: functional_call sets every place of one that is named once.
    state = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
    }
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with FlopCounterMode(display=False) as counter, torch.enable_grad():
            functional_call(model, state, (torch.empty((1, *shape), device="meta"),)).sum().backward()
    finally:
        for module, was_training in training.items():
            module.training = was_training
    return float(counter.get_total_flops())
