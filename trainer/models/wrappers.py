"""Wrappers of other networks, so that every model maps one tensor to one tensor."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.models.documents import lengths_of, mask_of

# How a network is told which tokens of a row are one document's: see `way_of`.
Way = Literal["lengths", "mask", "added mask", "positions"]

_WINDOWS = {"sliding_attention", "chunked_attention"}  # kinds of layers in configurations of transformers


def way_of(network: nn.Module, *, takes_lengths: bool) -> Way | None:
    """How a network is told about documents; None if it cannot be.

    ==========  =====================================  ==============================================================
    way         it takes, besides positions            where
    ==========  =====================================  ==============================================================
    lengths     lengths of documents                   its attention is `attend`: `takes_lengths`
    mask        True where a token may look            attention of transformers
    added mask  0 there, and elsewhere the least one   "eager" attention, which adds it to the scores
    positions   nothing                                attention with a window, for which transformers makes the masks
    ==========  =====================================  ==============================================================
    """
    config = getattr(network, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    takes_masks = {"position_ids", "attention_mask"} <= inspect.signature(network.forward).parameters.keys()
    if not takes_masks or not kinds <= {"full_attention"} | _WINDOWS:
        return None
    if kinds & _WINDOWS or (not kinds and getattr(config, "sliding_window", None)):
        return "positions"
    if takes_lengths:
        return "lengths"
    if getattr(config, "_attn_implementation", None) == "eager":
        return "added mask"
    return "mask"


class Logits(nn.Module):
    """`inner` with a tensor as its output: of a Hugging Face output the logits, of a tuple the first tensor.

    Attributes:
        keeps_documents: given positions in documents, it looks at no other document, as far as is known;
            `separates_documents` tries that.
        compiled: it will be, and so takes masks in place of lengths.
    """

    compiled = False

    def __init__(self, inner: nn.Module, *, takes_lengths: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.way = way_of(inner, takes_lengths=takes_lengths)
        self.keeps_documents = self.way is not None

    def forward(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None or not self.keeps_documents:
            return _only_tensor(self.inner(inputs))
        return _only_tensor(self.inner(inputs, position_ids=positions, **self._about_documents(positions)))

    def _about_documents(self, positions: Tensor) -> dict[str, Any]:
        """The arguments that tell `inner` about documents."""
        if self.way == "positions":
            return {"use_cache": False}
        if self.way == "lengths" and not self.compiled:
            return {"documents": lengths_of(positions)}
        mask = mask_of(positions)
        if self.way == "added mask":
            dtype = next(self.inner.parameters()).dtype
            hidden = torch.full_like(mask, torch.finfo(dtype).min, dtype=dtype)
            mask = hidden.masked_fill_(mask, 0)
        return {"attention_mask": mask}


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
