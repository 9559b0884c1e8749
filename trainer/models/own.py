"""The two small networks that need no further library: a residual CNN for small images and a transformer over bytes.

Both are a stack of residual blocks of one shape. Neither holds buffers or batch statistics: what a rank computes
depends on its samples only.

`Logits` and `Embedder` wrap other models, so that every model maps one tensor to one tensor.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.errors import TrainerError

HEAD_SIZE = 32
SMALLEST_IMAGE = 8
_WINDOWS = {"sliding_attention", "chunked_attention"}  # kinds of layers in configurations of transformers


class BlockStack(nn.Module):
    """Residual blocks in a row."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """`others` go to every block."""
        for block in self.blocks:
            x = block(x, *others)
        return x


class ConvBlock(nn.Module):
    """Two 3x3 convolutions with a skip around them; [batch, width, height, width of the image] stays as it is."""

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


class SmallCnn(nn.Module):
    """Images [batch, channels, height, width] to logits [batch, classes], at full resolution until the head.

    Sides are 8 pixels or more. The head sees averages over a grid of at least 4 x 4 cells. With no classes the output
    is what the head would see, [batch, feature_size].
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        channels, *sides = shape
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.stack = BlockStack([ConvBlock(width, dropout) for _ in range(depth)])
        # Not adaptive pooling, whose backward has no deterministic form on GPUs.
        self.cell = (sides[0] // 4, sides[1] // 4)
        self.feature_size = width * (sides[0] // self.cell[0]) * (sides[1] // self.cell[1])
        self.head: nn.Module = nn.Linear(self.feature_size, classes) if classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features = functional.avg_pool2d(self.stack(self.stem(images)), self.cell)
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
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` is that of `same_document`; without one, all tokens are of one document."""
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, HEAD_SIZE)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        x = x + self.dropout(self.merge(mixed.transpose(1, 2).reshape(batch, time, width)))
        inner = self.contract(functional.gelu(self.expand(self.mlp_norm(x))))
        out: Tensor = x + self.dropout(inner)
        return out


class ByteTransformer(nn.Module):
    """Tokens [batch, time], time up to `context`, to logits [batch, time, vocabulary] of each next token.

    With positions in documents, of the same shape as the tokens, attention stays within a document.
    """

    keeps_documents = True

    def __init__(self, vocabulary: int, context: int, *, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.bytes = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.stack = BlockStack([TransformerBlock(width, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._init_weights)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
        masks = () if positions is None else (same_document(positions),)
        logits: Tensor = self.head(self.norm(self.stack(self.bytes(tokens) + self.positions(places), *masks)))
        return logits

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in models of transformers, called for each module."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def same_document(positions: Tensor) -> Tensor:
    """What each token may look at, bool [batch, 1, time, time]: itself and those before it in its document.

    From positions [batch, time] that begin at 0 in every document. For scaled_dot_product_attention, which with such a
    mask computes without torch's flash kernel.
    """
    document = (positions == 0).cumsum(dim=1)
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return same.tril().unsqueeze(1)


class Logits(nn.Module):
    """`inner` with a tensor as its output: of a Hugging Face output the logits, of a tuple the first tensor.

    `keeps_documents` is whether `inner` can be given positions in documents, and then looks at no other document. Where
    its attention has a window, transformers makes the masks from them: one in their place would be without the window.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        config = getattr(inner, "config", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        self._windows = bool(kinds & _WINDOWS or (not kinds and getattr(config, "sliding_window", None)))
        takes_masks = {"position_ids", "attention_mask"} <= inspect.signature(inner.forward).parameters.keys()
        self.keeps_documents = takes_masks and kinds <= {"full_attention"} | _WINDOWS

    def forward(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None or not self.keeps_documents:
            return _only_tensor(self.inner(inputs))
        if self._windows:
            return _only_tensor(self.inner(inputs, position_ids=positions, use_cache=False))
        return _only_tensor(self.inner(inputs, attention_mask=same_document(positions), position_ids=positions))


class Embedder(nn.Module):
    """Images to vectors to compare, [batch, embedding_size], not normalised: pooled features and a two-layer MLP."""

    def __init__(self, backbone: nn.Module, feature_size: int, embedding_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Sequential(
            nn.Linear(feature_size, feature_size), nn.GELU(), nn.Linear(feature_size, embedding_size)
        )

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.projection(self.backbone(images))
        return embeddings


def _only_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    raise TrainerError(f"the model returns {type(output).__name__}, not a tensor or an output with logits")
