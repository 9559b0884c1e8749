"""The two networks: a small residual CNN for 8x8 digits and a small transformer over bytes.

Both are a stack of residual blocks of one shape, so activation checkpointing is the same for both. Neither holds
buffers or batch statistics: what a rank computes depends on its samples only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.config import Settings


def build_model(settings: Settings) -> nn.Module:
    """The network of a task, freshly initialised from torch's random state."""
    return ByteTransformer(settings) if settings.task == "lm" else DigitsNet(settings)


class BlockStack(nn.Module):
    """Residual blocks in a row; with checkpointing, backward recomputes each block's inside instead of storing it."""

    def __init__(self, blocks: list[nn.Module], gradient_checkpointing: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.gradient_checkpointing = gradient_checkpointing

    def forward(self, x: Tensor) -> Tensor:
        recompute = self.gradient_checkpointing and self.training
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x


class ConvBlock(nn.Module):
    """Two 3x3 convolutions with a skip around them; shape stays [batch, width, height, width of the image]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(width // 8, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second_norm = nn.GroupNorm(width // 8, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.first(functional.gelu(self.first_norm(x)))
        inner = self.second(functional.gelu(self.second_norm(inner)))
        out: Tensor = x + self.dropout(inner)
        return out


class DigitsNet(nn.Module):
    """Images [batch, 1, 8, 8] with values in 0..1 to logits [batch, 10]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        blocks: list[nn.Module] = [ConvBlock(width, settings.dropout) for _ in range(settings.depth)]
        self.stack = BlockStack(blocks, settings.gradient_checkpointing)
        self.head = nn.Linear(width * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.avg_pool2d(self.stack(self.stem(images)), 2)
        logits: Tensor = self.head(functional.gelu(features.flatten(1)))
        return logits


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and MLP over [batch, time, width], with heads of size 32."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = width // 32
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, 32)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.merge(mixed.transpose(1, 2).reshape(batch, time, width)))
        inner = self.contract(functional.gelu(self.expand(self.mlp_norm(x))))
        out: Tensor = x + self.dropout(inner)
        return out


class ByteTransformer(nn.Module):
    """Bytes [batch, time] (0..255, time up to `context`) to logits [batch, time, 256] of each next byte."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(settings.context, width)
        blocks: list[nn.Module] = [TransformerBlock(width, settings.dropout) for _ in range(settings.depth)]
        self.stack = BlockStack(blocks, settings.gradient_checkpointing)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(_small_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.norm(self.stack(self.bytes(tokens) + self.positions(places))))
        return logits


def _small_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
