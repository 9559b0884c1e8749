"""Data of a given shape without samples, and every named network in a size that takes milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.trainer.splits import Rows
from trainer.config import Settings
from trainer.data.contract import Data, Images, Text

LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def images(channels: int = 1, height: int = 8, width: int = 8, classes: int = 10) -> Images:
    return Images(Rows(0), Rows(0), (channels, height, width), tuple(f"class {n}" for n in range(classes)))


def text(vocabulary: int = 256, context: int = 16) -> Text:
    return Text(Rows(0), Rows(0), context, vocabulary)


_ENCODER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
_RESNET = {"hidden_sizes": [16, 16, 16, 16], "embedding_size": 16, "depths": [2, 1, 1, 1]}
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 2}

# By name: the task, the data and model_options.
SMALL: dict[str, tuple[str, Data, dict[str, Any]]] = {
    "cnn": ("classify", images(), {}),
    "resnet18": ("classify", images(3, 32, 32), _RESNET),
    "resnet50": ("classify", images(3, 72, 72, 12), _RESNET),
    "resnet152": ("classify", images(1, 64, 48, 3), _RESNET),
    "vit-b16": ("classify", images(3, 28, 28), _ENCODER),
    "bytes": ("lm", text(), {}),
    "gpt2": ("lm", text(300), _GPT2),
    "gpt2-medium": ("lm", text(300), _GPT2),
    "gpt2-large": ("lm", text(), _GPT2),
    "gpt2-xl": ("lm", text(), _GPT2),
    "smollm-135m": ("lm", text(100), {**_ENCODER, "num_key_value_heads": 1}),
    "bert-tiny": ("mlm", text(), {}),
    "bert-base": ("mlm", text(63), _ENCODER),
    "bert-large": ("mlm", text(64), _ENCODER),
}


def small_settings(name: str, **changes: Any) -> Settings:
    """The settings for a network of SMALL."""
    task, _, options = SMALL[name]
    sizes = {"width": 32, "depth": 3} if name in ("cnn", "bytes") else {}
    return Settings(**{"task": task, "model": name, "model_options": options, **sizes, **changes})


def inputs(data: Data, count: int = 3) -> torch.Tensor:
    """As many samples as a network takes, from a fixed seed."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(data, Images):
        return torch.rand(count, *data.shape, generator=generator)
    return torch.randint(data.vocabulary, (count, data.context), generator=generator)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
