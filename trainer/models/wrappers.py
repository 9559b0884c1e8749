"""Wrappers of other networks, so that every model maps one tensor to one tensor."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.models.documents import documents_of

_WINDOWS = {"sliding_attention", "chunked_attention"}  # kinds of layers in configurations of transformers


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
