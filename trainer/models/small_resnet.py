"""A ResNet whose stem keeps the resolution; needs transformers when imported."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import ResNetForImageClassification


class SmallImageResNet(ResNetForImageClassification):  # type: ignore[no-untyped-call]
    """ResNet for images of up to 64 pixels: a 3x3 convolution with stride 1 and no pooling in front of the stages.

    The stem of He et al. for CIFAR (2015, section 4.2); the stages stay those of the configuration.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        stem: Any = self.resnet.embedder
        stem.embedder.convolution = nn.Conv2d(config.num_channels, config.embedding_size, 3, padding=1, bias=False)
        self._init_weights(stem.embedder.convolution)  # type: ignore[no-untyped-call]
        stem.pooler = nn.Identity()
