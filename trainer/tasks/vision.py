"""Learning from images: their bytes as networks take them, random changes in training, and classification."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import CropDraw, Crops, Fields, Images, Indices, Transform
from trainer.data.images import CROPPED_FROM, EncodedImages
from trainer.models import flops_per_sample
from trainer.tasks.objective import Objective, uniform

_Constants = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel or of all, of values in 0..1

_DIGITS: _Constants = ((0.0,), (1.0,))
_CIFAR10: _Constants = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_IMAGENET: _Constants = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREY: _Constants = ((0.449,), (0.226,))  # the means of ImageNet's

_TOP_5_FROM = 11  # classes; with fewer it says little


def are_digits(settings: Settings) -> bool:
    """Their black stays 0, little of them is left by a crop, and a mirrored one is another sign, or none."""
    return settings.data in ("auto", "digits")


def crops_decode(settings: Settings, data: Images) -> bool:
    """Return whether crops are made when images are decoded: those that are resized anyway, out of more pixels."""
    return isinstance(data.train, EncodedImages) and settings.image_size >= CROPPED_FROM


class Pixels(nn.Module):
    """Values 0 .. 255 of images [n, channels, height, width], uint8 or fp32, to fp32: value / 255, less mean, over
    deviation. It works on the images' device: bytes are quicker to move there."""

    scale: Tensor
    shift: Tensor

    def __init__(self, settings: Settings, channels: int) -> None:
        super().__init__()
        constants = _CIFAR10 if settings.data == "cifar10" else _IMAGENET
        if are_digits(settings):
            constants = _DIGITS
        elif channels != 3:
            constants = _GREY
        mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in constants)
        self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
        self.register_buffer("shift", -mean / deviation, persistent=False)
        self.memory_format = torch.channels_last if settings.channels_last else torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        # Bytes are reordered while they are still bytes; arithmetic keeps the order.
        return images.contiguous(memory_format=self.memory_format) * self.scale + self.shift


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, drawn on the CPU and made on the device. Picklable.

    Attributes:
        height: of the images, in pixels.
        width: of the images, in pixels.
        smallest_area: a part of at least this share of the image is enlarged to all of it; None to move the image.
        is_decoded: that part is all that was decoded: only the other changes are left to make.
        padding: the most whole pixels that it is then moved each way, with black coming in.
        flip: half of the images are mirrored.
        light: contrast and brightness change by factors between 1 - light and 1 + light.
    """

    seed: int
    height: int
    width: int
    smallest_area: float | None = None
    is_decoded: bool = False
    padding: int = 0
    flip: bool = False
    light: float = 0.0

    def crops(self, purposes: Sequence[str], positions: Indices) -> Crops:
        """The parts of the images at these positions that are enlarged, one for each purpose."""
        return np.stack([self._crop(purpose, positions) for purpose in purposes], axis=1)

    def _crop(self, purpose: str, positions: Indices) -> npt.NDArray[np.float64]:
        """The parts for one purpose, [n, 4]."""
        area, ratio, across, down, *_ = uniform(self.seed, purpose, positions, 7).T
        assert self.smallest_area is not None
        share = self.smallest_area + (1 - self.smallest_area) * area
        return np.stack([share, np.exp(np.log(4 / 3) * (2 * ratio - 1)), across, down], axis=1)

    def draw(self, purpose: str, positions: Indices) -> Tensor:
        """The changes of the images at these positions, fp32 [n, 6].

        Horizontal factor and shift, vertical factor and shift (a point at x of the new image, from -1 to 1, is at
        factor * x + shift of the old one), contrast, brightness.
        """
        *_, across, down, side, contrast, brightness = uniform(self.seed, purpose, positions, 7).T
        if self.is_decoded:
            x_factor = y_factor = np.ones_like(side)
            x_shift = y_shift = np.zeros_like(side)
        elif self.smallest_area is None:
            x_factor = y_factor = np.ones_like(side)
            x_shift = np.floor(across * (2 * self.padding + 1) - self.padding) * 2 / self.width
            y_shift = np.floor(down * (2 * self.padding + 1) - self.padding) * 2 / self.height
        else:
            share, shape, across, down = self._crop(purpose, positions).T
            x_factor, y_factor = (np.minimum(1, np.sqrt(share * factor)) for factor in (shape, 1 / shape))
            x_shift = (1 - x_factor) * (2 * across - 1)
            y_shift = (1 - y_factor) * (2 * down - 1)
        if self.flip:
            x_factor = np.where(side < 0.5, -x_factor, x_factor)
        contrast, brightness = (1 + self.light * (2 * factor - 1) for factor in (contrast, brightness))
        return torch.from_numpy(
            np.stack([x_factor, x_shift, y_factor, y_shift, contrast, brightness], axis=1).astype(np.float32)
        )

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Images [n, channels, height, width] cropped, moved and mirrored, bilinear, then relit; fp32 in 0 .. 255."""
        # Not affine_grid: it multiplies matrices, which autocast and TF32 do with too few digits for a coordinate.
        across, down = (torch.arange(1, 2 * n, 2, device=images.device) / n - 1 for n in (self.width, self.height))
        x = changes[:, 0:1] * across + changes[:, 1:2]
        y = changes[:, 2:3] * down + changes[:, 3:4]
        grid = torch.stack([x[:, None, :].expand(-1, len(down), -1), y[:, :, None].expand(-1, -1, len(across))], dim=-1)
        outside = "zeros" if self.smallest_area is None else "border"
        placed = functional.grid_sample(images.float(), grid, padding_mode=outside, align_corners=False)
        if not self.light:
            return placed
        contrast = changes[:, 4].view(-1, 1, 1, 1)
        brightness = changes[:, 5].view(-1, 1, 1, 1)
        mean = placed.mean(dim=(1, 2, 3), keepdim=True)
        return (((placed - mean) * contrast + mean) * brightness).clamp(0, 255)


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


class Classification(VisionObjective):
    """Cross-entropy of logits [n, classes] and labels; label smoothing counts in training only.

    `augment` is a random resized crop as in Szegedy et al., "Going deeper with convolutions" (2015), section 6, or a
    small move where images are small.
    """

    def __init__(self, settings: Settings, data: Images, model: nn.Module) -> None:
        super().__init__(settings, data, model)
        self._label_smoothing = settings.label_smoothing
        _, height, width = data.shape
        shorter = min(height, width)
        crop: dict[str, Any] = {"padding": max(1, shorter // 8)}
        if shorter >= CROPPED_FROM:
            crop = {"smallest_area": 0.08, "is_decoded": crops_decode(settings, data)}
        self._augmentation: Augmentation | None = None
        if settings.augment:
            self._augmentation = Augmentation(settings.seed, height, width, flip=not are_digits(settings), **crop)
        self.metrics = ("accuracy", "loss")
        if len(data.classes) >= _TOP_5_FROM:
            self.metrics = ("accuracy", "loss", "top5_accuracy")

    def forward(self, fields: Fields) -> Tensor:
        images = fields["image"]
        if self._augmentation is not None and "changes" in fields:
            images = self._augmentation.apply(images, fields["changes"])
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
        if "top5_accuracy" in self.metrics:
            sums["top5_accuracy"] = (logits.topk(5).indices == labels.unsqueeze(-1)).sum()
        return sums

    def crops(self) -> CropDraw | None:
        if self._augmentation is not None and self._augmentation.is_decoded:
            return functools.partial(self._augmentation.crops, ("training",))
        return None

    def transform(self, *, training: bool) -> Transform:
        if training and self._augmentation is not None:
            return functools.partial(_with_changes, self._augmentation)
        return super().transform(training=training)


def _with_changes(augmentation: Augmentation, raw: Fields, positions: Indices) -> Fields:
    """Images and labels as they are, and the random changes [n, 6] of the images."""
    images = raw["image"]
    if augmentation.is_decoded:
        images = images.squeeze(1)
    return {"image": images, "label": raw["label"], "changes": augmentation.draw("training", positions)}
