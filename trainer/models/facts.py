"""Sizes of a network that its floating-point operations follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.own import ByteTransformer


@dataclass(frozen=True)
class ModelFacts:
    """`parameters` counts shared ones once; `matrix_parameters` leaves out tables that are only looked up in.

    `layers` and `attention_width` (heads times the size of a head) are None for networks without known attention.
    """

    parameters: int
    matrix_parameters: int
    layers: int | None
    attention_width: int | None

    def flops_per_token(self, context: int) -> float | None:
        """Floating-point operations of forward and backward per token of a window of `context`; None: unknown.

        6 N + 12 L H Q T of Chowdhery et al., "PaLM", 2022, appendix B: attention counts in full, causal or not, and
        recomputation does not.
        """
        if self.layers is None or self.attention_width is None:
            return None
        return 6.0 * self.matrix_parameters + 12.0 * self.layers * self.attention_width * context


def model_facts(model: nn.Module) -> ModelFacts:
    """The facts of a whole (not sharded) network."""
    parameters = dict(model.named_parameters(remove_duplicate=True))
    tables = {id(module.weight): module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            tables.pop(id(module.weight), None)  # an output layer that is tied to the table of tokens
    total = sum(parameter.numel() for parameter in parameters.values())
    layers, attention_width = _attention(model)
    return ModelFacts(total, total - sum(table.numel() for table in tables.values()), layers, attention_width)


def flops_per_sample(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of forward and backward for one float input of `shape`, counted without computing.

    Matrix products, convolutions and attention count, the rest does not. `model` must not be sharded yet.
    """
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    def weightless(tensor: Tensor, grad: bool) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=grad)

    # Shared parameters stay shared: functional_call sets every place of one that is named once.
    state = {name: weightless(tensor, tensor.requires_grad) for name, tensor in model.named_parameters()}
    state |= {name: weightless(tensor, False) for name, tensor in model.named_buffers()}
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with FlopCounterMode(display=False) as counter, torch.enable_grad():
            output = functional_call(model, state, (torch.empty((1, *shape), device="meta"),))
            output.sum().backward()
    finally:
        for module, was_training in training.items():
            module.training = was_training
    return float(counter.get_total_flops())


def _attention(model: nn.Module) -> tuple[int | None, int | None]:
    for module in model.modules():
        if isinstance(module, ByteTransformer):
            return len(module.stack.blocks), module.bytes.embedding_dim
        config: Any = getattr(module, "config", None)
        layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
        if isinstance(layers, int) and isinstance(heads, int):
            head_size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
            if head_size:
                return layers, heads * head_size
    return None, None
