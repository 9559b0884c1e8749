"""Floating-point operations of forward and backward, from a network's sizes or counted. Ask before it is sharded."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from trainer.models.own import ByteTransformer
from trainer.models.weights import network_of


def flops_per_token(model: nn.Module, context: int) -> float | None:
    """Operations per token of a window of `context`; None for networks without known attention.

    6 N + 12 L H Q T of Chowdhery et al., "PaLM", 2022, appendix B: attention counts in full, causal or not. Neither
    recomputation does, nor tables that are only looked up in.
    """
    config: Any = getattr(network_of(model)[0], "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    if isinstance(model, ByteTransformer):
        attention = len(model.blocks) * model.bytes.embedding_dim
    elif isinstance(layers, int) and isinstance(heads, int):
        attention = layers * heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    else:
        return None
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    # An output layer may be tied to the table of tokens.
    tables -= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    matrices = [parameter for parameter in model.parameters() if parameter not in tables]
    sizes = sum(parameter.numel() for parameter in matrices)
    trained_sizes = sum(parameter.numel() for parameter in matrices if parameter.requires_grad)
    # Frozen matrices take a product in forward and one in backward; trained ones a further one for their gradient.
    return 4.0 * sizes + 2.0 * trained_sizes + 12.0 * attention * context


def flops_per_sample(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Operations for one float input of `shape`, counted without computing: products, convolutions, attention."""
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    # Shared parameters stay shared: functional_call sets every place of one that is named once.
    state = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
    }
    model.eval()
    try:
        with FlopCounterMode(display=False) as counter, torch.enable_grad():
            functional_call(model, state, (torch.empty((1, *shape), device="meta"),)).sum().backward()
    finally:
        model.train()
    return float(counter.get_total_flops())
