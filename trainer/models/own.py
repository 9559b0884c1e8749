"""Two small networks without further libraries: a residual CNN for small images and a transformer over bytes.

`Logits` and `Embedder` wrap other models, so that every model maps one tensor to one tensor.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.errors import TrainerError

HEAD_SIZE = 32
SMALLEST_IMAGE = 8
# The lengths of documents, row by row; or what each token may look at: itself and those before it in its document,
# bool [batch, 1, time, time].
Documents = tuple[int, ...] | Tensor
_WINDOWS = {"sliding_attention", "chunked_attention"}  # kinds of layers in configurations of transformers


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
        places = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
        documents = None if positions is None else documents_of(positions, compiled=self.compiled)
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


def documents_of(positions: Tensor, *, compiled: bool) -> Documents:
    """Documents from positions [batch, time] that begin at 0 in each: a mask for compiled code, which needs one shape
    for all batches, else lengths."""
    starts = positions == 0
    if compiled:
        document = starts.cumsum(dim=1)
        return (document.unsqueeze(2) == document.unsqueeze(1)).tril().unsqueeze(1)
    bounds = [*starts.flatten().nonzero().flatten().tolist(), positions.numel()]
    return tuple(end - start for start, end in itertools.pairwise(bounds))


def attend(query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, **options: Any) -> Tensor:
    """Causal attention within documents: [batch, heads, time, head size], as all arguments.

    By lengths, each document is attended to by itself, in time and memory that grow with documents and not with rows.
    """
    attention: Callable[..., Tensor] = functools.partial(functional.scaled_dot_product_attention, **options)
    if documents is None or isinstance(documents, Tensor):
        return attention(query, key, value, attn_mask=documents, is_causal=documents is None)
    batch, heads, time, size = query.shape
    # All rows as one, [1, heads, batch * time, head size]: a document is a slice of it.
    joined = (tensor.transpose(0, 1).reshape(1, heads, -1, size) for tensor in (query, key, value))
    parts = (torch.split(tensor, list(documents), dim=2) for tensor in joined)
    mixed = [attention(*document, is_causal=True).transpose(1, 2) for document in zip(*parts, strict=True)]
    return torch.cat(mixed, dim=1).view(batch, time, heads, size).transpose(1, 2)


class Logits(nn.Module):
    """`inner` with a tensor as its output: of a Hugging Face output the logits, of a tuple the first tensor.

    `takes_lengths`: its attention is `attend`, with the keyword `documents`. `keeps_documents`: `inner` can be given
    positions in documents, and then looks at no other document; `separates_documents` tries that. Where its attention
    has a window, transformers makes the masks from them: ours would be without the window. "eager" attention of
    transformers adds its mask to the scores.
    """

    compiled = False

    def __init__(self, inner: nn.Module, *, takes_lengths: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self._takes_lengths = takes_lengths
        config = getattr(inner, "config", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        self._windows = bool(kinds & _WINDOWS or (not kinds and getattr(config, "sliding_window", None)))
        takes_masks = {"position_ids", "attention_mask"} <= inspect.signature(inner.forward).parameters.keys()
        self.keeps_documents = takes_masks and kinds <= {"full_attention"} | _WINDOWS
        self._adds_mask = getattr(config, "_attn_implementation", None) == "eager"

    def forward(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None or not self.keeps_documents:
            return _only_tensor(self.inner(inputs))
        if self._windows:
            return _only_tensor(self.inner(inputs, position_ids=positions, use_cache=False))
        documents = documents_of(positions, compiled=self.compiled or not self._takes_lengths)
        if not isinstance(documents, Tensor):
            return _only_tensor(self.inner(inputs, position_ids=positions, documents=documents))
        if self._adds_mask:
            dtype = next(self.inner.parameters()).dtype
            hidden = torch.full_like(documents, torch.finfo(dtype).min, dtype=dtype)
            documents = hidden.masked_fill_(documents, 0)
        return _only_tensor(self.inner(inputs, position_ids=positions, attention_mask=documents))


@torch.no_grad()
def separates_documents(model: nn.Module, vocabulary: int, length: int, device: torch.device) -> bool:
    """Return whether a document of `length` tokens that shares a row has the logits that it has alone, and none of its
    tokens sees a later one. The model is in eval mode; all ranks that share its weights call this together.

    Of a row of two documents, the first, the second, or the later half of both is changed, which other logits must not
    feel: in one batch each row is computed alike, and what is hidden counts exactly 0 in any type. Right masks gave 0
    of the logits' size, the least wrong one, in a fresh XGLM, 0.0004. Alone, a document has another shape and other
    kernels: 30 fresh layers in bf16 made 0.05 by rounding, documents as one text 0.5 or more. Medians over tokens
    forgive one that rounding sends to another expert.
    """
    if not getattr(model, "keeps_documents", False):
        return False
    row = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).to(device)
    changed = (row + 1) % vocabulary
    half = length // 2
    rows = row.repeat(4, 1, 1)
    rows[1, 0] = changed[0]
    rows[2, 1] = changed[1]
    rows[3, :, half:] = changed[:, half:]
    alone = model(row).float()
    try:
        first, *others = (
            model(rows.flatten(1), torch.arange(length, device=device).repeat(4, 2)).float().view(4, *alone.shape)
        )
    except Exception:  # of any type, for a mask that it does not take; what is not about that comes again in step 1
        return False
    size = alone.norm(dim=-1).mean()
    felt = (others[0] - first)[1:], (others[1] - first)[:1], (others[2] - first)[:, :half]
    limits = ((first - alone, 0.2), *((difference, 1e-4) for difference in felt))
    # Not a quotient: a head of zeros gives logits of size 0.
    return all(bool((error.norm(dim=-1).median(dim=-1).values <= limit * size).all()) for error, limit in limits)


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
    logits = output
    if hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple):
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise TrainerError(f"the model returns {type(output).__name__}, not a tensor or an output with logits")
    return logits
