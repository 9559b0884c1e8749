"""ResNets and ViT-B/16 from `transformers` configurations, with fresh weights.

Residual networks: He et al., "Deep Residual Learning for Image Recognition", 2015. Vision transformer: Dosovitskiy et
al., "An Image is Worth 16x16 Words", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.models.huggingface import configuration, fitting, library
from trainer.models.own import Logits

_RESNETS: Mapping[str, Mapping[str, Any]] = {
    "resnet18": {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
    "resnet50": {"layer_type": "bottleneck", "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]},
    "resnet152": {"layer_type": "bottleneck", "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 8, 36, 3]},
}

NAMES = (*_RESNETS, "vit-b16")

# Images up to this side get a stem that keeps their resolution; the usual one would leave 1/16 of their pixels.
SMALL_IMAGE = 64
_LARGEST_PATCH = 16
_FEWEST_PATCHES = 7  # along the shorter side
_MOST_PATCHES = 4096


def build(settings: Settings, shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, int]:
    """The named network for images of `shape` (channels, height, width), and the size of its pooled features.

    With no classes the output is the pooled features [batch, feature size] themselves.
    """
    if settings.model == "vit-b16":
        return _vit(settings, shape, classes)
    return _resnet(settings, shape, classes)


def _resnet(settings: Settings, shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, int]:
    kind = library().ResNetConfig
    values = {**_RESNETS[settings.model], "num_channels": shape[0], "num_labels": classes}
    config = configuration(kind, values, settings.model_options)
    model: Any = library().ResNetForImageClassification
    if max(shape[1:]) <= SMALL_IMAGE:
        from trainer.models import small_resnet

        model = small_resnet.SmallImageResNet
    return Logits(fitting(lambda: model(config))), config.hidden_sizes[-1]


def _vit(settings: Settings, shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, int]:
    channels, height, width = shape
    given = settings.model_options.get("patch_size")
    patch = given if isinstance(given, int) and given > 0 else patch_size(height, width)
    if height % patch or width % patch or (height // patch) * (width // patch) > _MOST_PATCHES:
        raise SettingsError(
            f"vit-b16: patches of {patch}x{patch} pixels do not suit images of {height}x{width}; "
            "set image_size to a multiple of 16"
        )
    values = {
        "num_channels": channels,
        "image_size": height if height == width else [height, width],
        "patch_size": patch,
        "num_labels": classes,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
        "attn_implementation": "sdpa",
    }
    config = configuration(library().ViTConfig, values, settings.model_options)
    return Logits(fitting(lambda: library().ViTForImageClassification(config))), config.hidden_size


def patch_size(height: int, width: int) -> int:
    """The largest patch up to 16 pixels that divides both sides and leaves 7 along the shorter one; at least 1."""
    largest = max(1, min(_LARGEST_PATCH, min(height, width) // _FEWEST_PATCHES))
    return next(size for size in range(largest, 0, -1) if height % size == 0 and width % size == 0)
