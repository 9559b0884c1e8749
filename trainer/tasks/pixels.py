"""From the bytes of images to the numbers that networks take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config import Settings

_Constants = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel, of values in 0..1

# Of the training images. The digits stay as they are: their black is 0.
_CIFAR10: _Constants = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_IMAGENET: _Constants = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Pixels(nn.Module):
    """Values 0 .. 255 of images [n, channels, height, width], uint8 or fp32, to fp32: value / 255, less mean, over
    deviation. It works on the images' device: bytes are quicker to move there."""

    scale: Tensor
    shift: Tensor

    def __init__(self, settings: Settings, channels: int) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in _constants(settings, channels))
        self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
        self.register_buffer("shift", -mean / deviation, persistent=False)
        self.memory_format = torch.channels_last if settings.channels_last else torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        # Bytes are reordered while they are still bytes; arithmetic keeps the order.
        return images.contiguous(memory_format=self.memory_format) * self.scale + self.shift


def _constants(settings: Settings, channels: int) -> _Constants:
    if settings.data in ("auto", "digits"):
        return (0.0,) * channels, (1.0,) * channels
    if channels != 3:
        return (0.449,) * channels, (0.226,) * channels  # the means of ImageNet's constants
    return _CIFAR10 if settings.data == "cifar10" else _IMAGENET
