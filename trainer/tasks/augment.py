"""Random crops, mirror images and light for training images.

What happens to an image is drawn on the CPU, by its position alone, and done on the device for a whole batch at once.
So an image goes there once, as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import Indices
from trainer.tasks.objective import uniform

_SMALL_SIDE = 64  # pixels; below that a crop that is enlarged again loses too much


@dataclass(frozen=True)
class Augmentation:
    """What may happen to images of `height` x `width` pixels. Picklable.

    With `smallest_area`, a part of at least that share of the image is enlarged to all of it; otherwise the image is
    moved by up to `padding` whole pixels each way, with black coming in. `flip` mirrors half of the images. `light`
    changes contrast and brightness by factors between 1 - light and 1 + light.
    """

    seed: int
    purpose: str
    height: int
    width: int
    smallest_area: float | None = None
    padding: int = 0
    flip: bool = False
    light: float = 0.0

    def draw(self, positions: Indices) -> Tensor:
        """The changes of the images at these positions, fp32 [n, 6].

        Horizontal factor and shift, vertical factor and shift (a point at x of the new image, from -1 to 1, is at
        factor * x + shift of the old one), contrast, brightness.
        """
        area, ratio, across, down, side, contrast, brightness = uniform(self.seed, self.purpose, positions, 7).T
        if self.smallest_area is None:
            wide = high = np.ones_like(area)
            left = np.floor(across * (2 * self.padding + 1) - self.padding) * 2 / self.width
            top = np.floor(down * (2 * self.padding + 1) - self.padding) * 2 / self.height
        else:
            share = self.smallest_area + (1 - self.smallest_area) * area
            shape = np.exp(np.log(4 / 3) * (2 * ratio - 1))
            wide, high = (np.minimum(1, np.sqrt(share * factor)) for factor in (shape, 1 / shape))
            left, top = (1 - wide) * (2 * across - 1), (1 - high) * (2 * down - 1)
        if self.flip:
            wide = np.where(side < 0.5, -wide, wide)
        contrast, brightness = (1 + self.light * (2 * factor - 1) for factor in (contrast, brightness))
        return torch.from_numpy(np.stack([wide, left, high, top, contrast, brightness], axis=1).astype(np.float32))

    def placed(self, images: Tensor, changes: Tensor) -> Tensor:
        """Images [n, channels, height, width] cropped, moved and mirrored, fp32; bilinear, on the images' device."""
        # Not affine_grid: it multiplies matrices, which autocast and TF32 do with too few digits for a coordinate.
        across, down = (torch.arange(1, 2 * n, 2, device=images.device) / n - 1 for n in (self.width, self.height))
        x = changes[:, 0:1] * across + changes[:, 1:2]
        y = changes[:, 2:3] * down + changes[:, 3:4]
        grid = torch.stack([x[:, None, :].expand(-1, len(down), -1), y[:, :, None].expand(-1, -1, len(across))], dim=-1)
        outside = "zeros" if self.smallest_area is None else "border"
        return functional.grid_sample(images.float(), grid, padding_mode=outside, align_corners=False)


def relit(images: Tensor, changes: Tensor) -> Tensor:
    """Distances from each image's mean times its contrast, then all times its brightness; values stay in 0 .. 255."""
    contrast, brightness = changes[:, 4].view(-1, 1, 1, 1), changes[:, 5].view(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return (((images - mean) * contrast + mean) * brightness).clamp(0, 255)


def for_training(settings: Settings, shape: tuple[int, int, int]) -> Augmentation | None:
    """What `augment` means to classification: a random resized crop, or a small move where images are small.

    The crop is that of Szegedy et al., "Going deeper with convolutions" (2015), section 6.
    """
    if not settings.augment:
        return None
    _, height, width = shape
    shorter, flip = min(height, width), _keeps_meaning_mirrored(settings)
    if shorter >= _SMALL_SIDE:
        return Augmentation(settings.seed, "training", height, width, smallest_area=0.08, flip=flip)
    return Augmentation(settings.seed, "training", height, width, padding=max(1, shorter // 8), flip=flip)


def for_view(settings: Settings, shape: tuple[int, int, int], purpose: str) -> Augmentation:
    """One view of an image for contrastive learning: crop, mirror image and light.

    After Chen et al., "A simple framework for contrastive learning of visual representations" (2020); milder crops for
    the digits, of which little is left otherwise.
    """
    _, height, width = shape
    natural = _keeps_meaning_mirrored(settings)
    area = 0.2 if natural else 0.5
    return Augmentation(settings.seed, purpose, height, width, smallest_area=area, flip=natural, light=0.4)


def _keeps_meaning_mirrored(settings: Settings) -> bool:
    """A mirrored digit is another sign, or none."""
    return settings.data not in ("auto", "digits")
