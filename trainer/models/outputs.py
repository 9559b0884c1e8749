"""Small modules around others, so that every model maps one tensor to one tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trainer.errors import TrainerError


class Logits(nn.Module):
    """Whatever `inner` answers to one tensor, reduced to a tensor: a Hugging Face output to its logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return _only_tensor(self.inner(inputs))


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
    raise TrainerError(f"the model answers with {type(output).__name__}, not with a tensor or an output with logits")
