"""From encoded images to pixels of the size that was asked for."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainer.errors import TrainerError, one_line

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("BMP", "JPEG", "PNG", "WEBP")

# Larger images are refused before they are decoded: a few kilobytes can unfold to gigabytes of pixels.
MAX_PIXELS = 2**26

_TRIED = 16  # images looked at for one that can be decoded

Shape = tuple[int, int, int]  # channels, height, width


class UndecodableError(ValueError):
    """These bytes are no image that can be used; the message says why."""


def require_pillow(source: str) -> None:
    """Raises TrainerError if Pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        raise TrainerError(f"--data {source} decodes images with Pillow: pip install 'gputui[train]'")


def decode(content: bytes, size: int, shape: Shape | None = None) -> Tensor:
    """An image as uint8 [3, height, width], RGB; grey becomes three equal channels, transparency is dropped.

    With a `size` the shorter side is resized to it and the longer one cropped evenly; 0 leaves the image as it is.
    Orientation tags are ignored. Raises UndecodableError, also if the result has not this `shape`.
    """
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise UndecodableError(f"{width} x {height} pixels are more than the {MAX_PIXELS:,} that are allowed")
        if size:
            # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is still large enough.
            short = min(width, height)
            image.draft("RGB", (math.ceil(width * size / short), math.ceil(height * size / short)))
        rgb = _as_rgb(image)
        if size and rgb.size != (size, size):
            (width, height), side = rgb.size, min(rgb.size)
            left, top = (width - side) / 2, (height - side) / 2
            rgb = rgb.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    except UndecodableError:
        raise
    except Exception as error:  # a decoder that is given damaged bytes may raise anything
        text = one_line(error)
        unknown = "cannot identify image file" in text
        raise UndecodableError("no image of a known kind" if unknown else text) from error
    pixels = torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
    if shape is not None and tuple(pixels.shape) != shape:
        sizes = f"{pixels.shape[2]} x {pixels.shape[1]} pixels, but the first image has {shape[2]} x {shape[1]}"
        raise UndecodableError(f"{sizes}; give --image-size to resize them all")
    return pixels


def _as_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey, which a plain conversion would clip
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P":  # a palette may hold transparent colours
        image = image.convert("RGBA")
    return image.convert("RGB")


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, channels, side, side] as [n, channels, size, size]: bilinear, antialiased, rounded; 0 leaves them."""
    if not size or size == images.shape[-1]:
        return images
    # On bytes: the same but for a difference of 1 as on floats, in a ninth of the time.
    return torch.nn.functional.interpolate(
        images, size=(size, size), mode="bilinear", align_corners=False, antialias=True
    )


def first_shape(contents: Iterable[Callable[[], bytes]], size: int, where: str) -> Shape:
    """What all images have to be like: size x size, or where `size` is 0 the shape of the first that can be decoded.

    Looks at a few only. Raises TrainerError if none of them is an image.
    """
    if size:
        return (3, size, size)
    reason = "there are none"
    for content in itertools.islice(contents, _TRIED):
        try:
            pixels = decode(content(), 0)
        except (OSError, UndecodableError) as error:
            reason = str(error)
            continue
        return (3, pixels.shape[1], pixels.shape[2])
    raise TrainerError(f"none of the first images in {where} can be read: {reason}")
