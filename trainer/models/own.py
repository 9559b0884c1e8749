"""Two small networks without further libraries: a residual CNN for small images and a transformer over bytes."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.documents import Documents, attend, lengths_of, mask_of

HEAD_SIZE = 32
SMALLEST_IMAGE = 8


class ConvBlock(nn.Module):
    """Two 3x3 convolutions with a skip around them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        layers = ((nn.GroupNorm(width // 8, width), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(2))
        self.inner = nn.Sequential(*itertools.chain(*layers), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class SmallCnn(nn.Module):
    """Images [batch, channels, height, width] to logits [batch, classes], at full resolution until the head.

    Sides are 8 pixels or more. The head sees averages over a grid of at least 4 x 4 cells. With no classes the output
    is what the head would see, [batch, feature_size].
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        channels, *sides = shape
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(width, dropout) for _ in range(depth)))
        # Not adaptive pooling, whose backward has no deterministic form on GPUs.
        self.cell = (sides[0] // 4, sides[1] // 4)
        self.feature_size = width * (sides[0] // self.cell[0]) * (sides[1] // self.cell[1])
        self.head: nn.Module = nn.Linear(self.feature_size, classes) if classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features = functional.avg_pool2d(self.blocks(self.stem(images)), self.cell)
        logits: Tensor = self.head(functional.gelu(features.flatten(1)))
        return logits


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and MLP over [batch, time, width], with heads of size 32."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = width // HEAD_SIZE
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        layers = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(*layers, nn.Dropout(dropout))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, HEAD_SIZE)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = attend(query, key, value, documents)
        x = x + self.dropout(self.merge(mixed.transpose(1, 2).reshape(batch, time, width)))
        out: Tensor = x + self.mlp(x)
        return out


class ByteTransformer(nn.Module):
    """Tokens [batch, time], time up to `context`, to logits [batch, time, vocabulary] of each next token.

    With positions in documents, of the same shape as the tokens, attention stays within a document.
    """

    keeps_documents = True
    compiled = False

    def __init__(self, vocabulary: int, context: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.bytes = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._init_weights)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        documents: Documents | None = None
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if positions is not None:
            documents = mask_of(positions) if self.compiled else lengths_of(positions)
            places = positions
        x = self.bytes(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, documents)
        logits: Tensor = self.head(self.norm(x))
        return logits

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in models of transformers, called for each module."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
