"""GPT-2 124M and ResNet-50 in plain torch, for the bare loop and the trainer (`--model benchmarks.gpu.models:NAME`).

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; He et al., "Deep Residual Learning for
Image Recognition", 2016, with the stride in the 3x3 convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm causal attention and MLP over [batch, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, time, width))
        out: Tensor = x + self.contract(functional.gelu(self.expand(self.mlp_norm(x)), approximate="tanh"))
        return out


class Gpt2(nn.Module):
    """Tokens [batch, time] to logits [batch, time, vocabulary], which is padded to a multiple of 64; tied weights."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(-(-vocabulary // 64) * 64, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.tokens.num_embeddings, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(_small_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def flops_per_token(self) -> float:
        """6 N + 12 L H Q T of Chowdhery et al., "PaLM", 2022, appendix B; N without the table of positions."""
        matrices = sum(weight.numel() for weight in self.parameters()) - self.positions.weight.numel()
        return 6.0 * matrices + 12.0 * len(self.blocks) * self.tokens.embedding_dim * self.positions.num_embeddings


def gpt2(vocabulary: int, context: int, layers: int = 12, width: int = 768, heads: int = 12) -> Gpt2:
    return Gpt2(vocabulary, context, layers, width, heads)


def _small_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


class Bottleneck(nn.Module):
    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.inner = nn.Sequential(
            *(nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, leaving, 1, bias=False), nn.BatchNorm2d(leaving)),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or entering != leaving:
            self.skip = nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.inner(x) + self.skip(x))


def resnet50(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Images [batch, channels, height, width] to logits [batch, classes]."""
    layers: list[nn.Module] = [
        nn.Conv2d(image_shape[0], 64, 7, 2, 3, bias=False),
        *(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
    ]
    entering = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(depth):
            stride = 2 if number == 0 and width > 64 else 1
            layers.append(Bottleneck(entering, width, stride))
            entering = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, classes))
