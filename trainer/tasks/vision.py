"""Learning from images: from their bytes to what networks take, and classification."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import Fields, Images, Indices, Transform
from trainer.models import flops_per_sample
from trainer.tasks import augment
from trainer.tasks.augment import Augmentation
from trainer.tasks.objective import Objective

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


class VisionObjective(Objective):
    """An objective over images of `shape` (channels, height, width); the model sees each one `views` times."""

    views = 1

    def __init__(self, settings: Settings, data: Images, model: nn.Module) -> None:
        super().__init__(model)
        self.shape = data.shape
        self.pixels = Pixels(settings, data.shape[0])

    def flops_per_sample(self) -> float | None:
        try:
            return self.views * flops_per_sample(self.model, self.shape)
        except Exception:  # a user's own model may need values or its device, and raise anything without them
            return None


_TOP_5_FROM = 11  # classes; with fewer it says little


class Classification(VisionObjective):
    """Cross-entropy of logits [n, classes] and labels; label smoothing counts in training only.

    Measures ``loss``, ``accuracy`` and, where there are more than ten classes, ``top5_accuracy``.
    """

    def __init__(self, settings: Settings, data: Images, model: nn.Module) -> None:
        super().__init__(settings, data, model)
        self._label_smoothing = settings.label_smoothing
        self._augmentation = augment.for_training(settings, data.shape)
        self._top_5 = len(data.classes) >= _TOP_5_FROM

    def forward(self, fields: Fields) -> Tensor:
        images = fields["image"]
        if self._augmentation is not None and "changes" in fields:
            images = self._augmentation.placed(images, fields["changes"])
        logits: Tensor = self.model(self.pixels(images))
        return functional.cross_entropy(logits.float(), fields["label"], label_smoothing=self._label_smoothing)

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        logits: Tensor = self.model(self.pixels(fields["image"]))
        labels = fields["label"]
        sums = {
            "loss": functional.cross_entropy(logits.float(), labels, reduction="sum"),
            "accuracy": (logits.argmax(-1) == labels).sum(),
            "count": torch.full_like(labels[0], len(labels)),
        }
        if self._top_5:
            sums["top5_accuracy"] = (logits.topk(5).indices == labels.unsqueeze(-1)).sum()
        return sums

    def transform(self, *, training: bool) -> Transform:
        return functools.partial(_with_changes, self._augmentation if training else None)


def _with_changes(augmentation: Augmentation | None, raw: Fields, positions: Indices) -> Fields:
    """Images and labels as they are, and with augmentation the random changes [n, 6] of the images."""
    return raw if augmentation is None else {**raw, "changes": augmentation.draw(positions)}
