"""Images: decoded from files in a folder for each class, and CIFAR-10 in its official binary form."""

from __future__ import annotations

import functools
import io
import math
import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Crops, Fields, Images, Indices, Split
from trainer.data.files import (
    HELD_OUT_NAMES,
    HELD_OUT_ONE_IN,
    Concatenation,
    MappedArray,
    grouped,
    name_hashes,
    require_data_dir,
)
from trainer.errors import TrainerError, one_line
from trainer.preparing.documents import files_below

_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
# Larger images are refused before they are decoded: a few kilobytes can unfold to gigabytes of pixels.
_MAX_PIXELS = 2**26
_TRIED = 16  # images looked at for one that can be decoded

Shape = tuple[int, int, int]  # channels, height, width
CROPPED_FROM = 64  # pixels; crops of smaller images lose too much, and so do their borders
_HELD_OUT_SHARE = 0.875  # 224 of 256 pixels, as published figures of ImageNet are measured

_SIDE = 32
_RECORD_BYTES = 1 + 3 * _SIDE * _SIDE  # the class and the pixels
_CLASSES = 10


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


# The part of an image of such a width and height.
Part = Callable[[int, int], Box]


class UndecodableError(ValueError):
    """These bytes are no image that can be used; the message says why."""


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode(content: bytes, size: int, shape: Shape | None = None, part: Part | None = None) -> Tensor:
    """An image as uint8 [3, height, width], RGB; grey becomes three equal channels, transparency is dropped.

    With a `size`, a part of the image (default: the largest square in the middle) is resized to it, once; 0 leaves the
    image as it is. Orientation tags are ignored. Raises UndecodableError, also if the result has not this `shape`.
    """
    try:
        from PIL import Image

        image: Image.Image = Image.open(io.BytesIO(content), formats=_FORMATS)
        width, height = image.size
        if width * height > _MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are more than the {_MAX_PIXELS:,} that are allowed")
        box = (part or middle)(width, height)
        if size:
            # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the part is still large enough.
            short = min(box.width, box.height)
            image.draft("RGB", (math.ceil(width * size / short), math.ceil(height * size / short)))
        if image.mode.startswith("I"):  # 16 bits of grey, which a plain conversion would clip
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode == "P":  # a palette may hold transparent colours
            image = image.convert("RGBA")
        image = image.convert("RGB")
        if size:
            across = image.width / width
            down = image.height / height
            end = ((box.x + box.width) * across, (box.y + box.height) * down)
            corners = (box.x * across, box.y * down, *end)
            image = image.resize((size, size), Image.Resampling.BILINEAR, box=corners)
    except ImportError:
        raise TrainerError("images are decoded with Pillow: pip install 'gputui[train]'") from None
    except Exception as error:  # a decoder that is given damaged bytes may raise anything
        text = one_line(error)
        if "cannot identify image file" in text:
            text = "no image of a known kind"
        raise UndecodableError(text) from error
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    if shape is not None and tuple(pixels.shape) != shape:
        sizes = f"{pixels.shape[2]} x {pixels.shape[1]} pixels, but the first image has {shape[2]} x {shape[1]}"
        raise UndecodableError(f"{sizes}; give --image-size to resize them all")
    return pixels


def middle(width: int, height: int, share: float = 1.0) -> Box:
    """The square in the middle whose side is a share of the shorter side."""
    side = share * min(width, height)
    return Box((width - side) / 2, (height - side) / 2, side, side)


def cropped(width: int, height: int, crop: npt.NDArray[np.float64]) -> Box:
    """The part of an image that a crop (see `Crops`) is."""
    area, ratio, across, down = crop.tolist()
    crop_width = min(width, math.sqrt(area * width * height * ratio))
    crop_height = min(height, math.sqrt(area * width * height / ratio))
    return Box(across * (width - crop_width), down * (height - crop_height), crop_width, crop_height)


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 [n, channels, side, side] as [n, channels, size, size]: bilinear, antialiased, rounded; 0 leaves them."""
    if not size or size == images.shape[-1]:
        return images
    # On bytes: the same but for a difference of 1 as on floats, in a ninth of the time.
    return torch.nn.functional.interpolate(
        images, size=(size, size), mode="bilinear", align_corners=False, antialias=True
    )


class EncodedImage(NamedTuple):
    """An image before it is decoded, and where it is from, for messages."""

    content: bytes
    where: str


class EncodedImages(Split):
    """Images that are decoded when they are read. Those of another `shape` are broken.

    Attributes:
        size: the side that images are resized to; 0: they are not.
        middle_share: the part of the shorter side that is used where there are no crops.
    """

    shape: Shape | None = None
    size: int
    middle_share: float

    @abstractmethod
    def encoded(self, indices: Indices) -> tuple[Sequence[EncodedImage], npt.NDArray[np.int64]]:
        """These images and their classes. Raises BrokenSample."""

    def read(self, indices: Indices) -> Fields:
        images, labels = self.encoded(indices)
        part = functools.partial(middle, share=self.middle_share)
        pixels = [self._pixels(index, image, part) for index, image in zip(indices.tolist(), images, strict=True)]
        return {"image": torch.stack(pixels), "label": torch.from_numpy(labels)}

    def read_crops(self, indices: Indices, crops: Crops) -> Fields:
        """Like `read`, but of each image the crops that are given, [n, crops, 3, size, size], and its checksum [n]."""
        images, labels = self.encoded(indices)
        views = []
        for index, image, image_crops in zip(indices.tolist(), images, crops, strict=True):
            parts = [functools.partial(cropped, crop=crop) for crop in image_crops]
            views.append(torch.stack([self._pixels(index, image, part) for part in parts]))
        checksums = torch.tensor([zlib.crc32(image.content) for image in images])
        return {"image": torch.stack(views), "label": torch.from_numpy(labels), "checksum": checksums}

    def _pixels(self, index: int, image: EncodedImage, part: Part) -> Tensor:
        try:
            return decode(image.content, self.size, self.shape, part)
        except UndecodableError as error:
            raise BrokenSample(index, image.where, error) from error


def held_out_share(size: int) -> float:
    """The part of the shorter side that held-out images of this size show."""
    if size >= CROPPED_FROM:
        return _HELD_OUT_SHARE
    return 1.0


def agree_on_shape(train: EncodedImages, held_out: EncodedImages, where: str) -> Shape:
    """Set the shape of all images, which is that of the first one that can be read, and return it.

    Looks at a few only. Raises TrainerError if none of them is an image.
    """
    reason = "there are none"
    for index in range(min(_TRIED, len(train))):
        try:
            channels, height, width = train.read(np.array([index]))["image"].shape[1:]
        except BrokenSample as error:
            reason = error.reason
            continue
        train.shape = held_out.shape = (channels, height, width)
        return channels, height, width
    raise TrainerError(f"none of the first images in {where} can be read: {reason}")


# --- folders of images ------------------------------------------------------------------------------------------------


@dataclass
class ImageFiles(EncodedImages):
    """Image files below `root` and their classes."""

    root: Path
    names: npt.NDArray[np.bytes_]  # a list of a million would take several times the memory in every reading process
    labels: npt.NDArray[np.int64]
    size: int
    middle_share: float

    def __len__(self) -> int:
        return len(self.names)

    def encoded(self, indices: Indices) -> tuple[Sequence[EncodedImage], npt.NDArray[np.int64]]:
        images = []
        for index in indices.tolist():
            path = self.root / os.fsdecode(self.names[index])
            try:
                images.append(EncodedImage(path.read_bytes(), str(path)))
            except OSError as error:
                raise BrokenSample(index, str(path), error) from error
        return images, self.labels[indices]


def folder(settings: Settings) -> Images:
    """The images of train/<class>/ and val/<class>/ in --data-dir, RGB; classes are in the order of their names.

    The held-out folder may be called val, validation or test. Without one, about one file in ten is held out, chosen by
    its path. Raises TrainerError for another layout, or where no image can be read.
    """
    root = require_data_dir(settings, "train/CLASS/*.png (or jpg, webp, bmp)")
    if not (root / "train").is_dir():
        raise TrainerError(f"{root} has no folder train with a folder of images for each class")
    classes = _class_folders(root / "train")
    names, labels = _list_images(root, "train", classes)
    held_out_name = next((name for name in HELD_OUT_NAMES if (root / name).is_dir()), None)
    if held_out_name is None:
        # Of two or more names at least one is held out, and never all.
        hashes = name_hashes(names)
        is_held_out = hashes % HELD_OUT_ONE_IN == 0
        if len(names) > 1 and (is_held_out.all() or not is_held_out.any()):
            is_held_out = np.arange(len(names)) == hashes.argmin()
        lists = [(names[~is_held_out], labels[~is_held_out]), (names[is_held_out], labels[is_held_out])]
    else:
        unknown = sorted(set(_class_folders(root / held_out_name)) - set(classes))
        if unknown:
            raise TrainerError(f"{root / held_out_name / unknown[0]} is a class that {root / 'train'} does not have")
        lists = [(names, labels), _list_images(root, held_out_name, classes)]
    size = settings.image_size
    train = ImageFiles(root, *lists[0], size, middle_share=1.0)
    held_out = ImageFiles(root, *lists[1], size, held_out_share(size))
    if not len(train) or not len(held_out):
        raise TrainerError(
            f"{root} has {len(train)} images to train on and {len(held_out)} to validate on ({', '.join(_SUFFIXES)})"
        )
    return Images(train, held_out, agree_on_shape(train, held_out, str(root / "train")), tuple(classes))


def _class_folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def _list_images(
    root: Path, split: str, classes: Sequence[str]
) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64]]:
    """Image paths relative to `root`, sorted within each class, and their class numbers."""
    names: list[bytes] = []
    counts = []
    for place in (f"{split}/{name}" for name in classes):
        files = [name for name in files_below(root / place) if name.lower().endswith(_SUFFIXES)]
        names += [os.fsencode(f"{place}/{name}") for name in sorted(files)]
        counts.append(len(files))
    return np.array(names, dtype=np.bytes_), np.repeat(np.arange(len(classes), dtype=np.int64), counts)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


class Records(Split):
    """The records of batch files of CIFAR-10, mapped into memory; images are resized to `size` (0: they are not)."""

    def __init__(self, files: Sequence[MappedArray], size: int) -> None:
        self._files = files
        self._parts = Concatenation([len(file) // _RECORD_BYTES for file in files])
        self._size = size

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, indices: Indices) -> Fields:
        records = np.empty((len(indices), _RECORD_BYTES), dtype=np.uint8)
        for _, array, rows, offsets in grouped(self._files, self._parts, indices):
            records[rows] = array.reshape(-1, _RECORD_BYTES)[offsets]
        for row in np.flatnonzero(records[:, 0] >= _CLASSES).tolist():
            part, offset = self._parts.locate(int(indices[row]))
            where = f"{self._files[part].path}, record {offset}"
            problem = f"its class is {records[row, 0]}, not 0 .. 9"
            raise BrokenSample(int(indices[row]), where, problem)
        images = torch.from_numpy(records[:, 1:].reshape(-1, 3, _SIDE, _SIDE))
        return {"image": resize(images, self._size), "label": torch.from_numpy(records[:, 0].astype(np.int64))}


def cifar10(settings: Settings) -> Images:
    """The five training batches and, held out, the test batch. Raises TrainerError if one is missing or cut off."""
    archive = require_data_dir(settings, "data_batch_1.bin .. data_batch_5.bin and test_batch.bin")
    if (archive / "cifar-10-batches-bin").is_dir():
        archive = archive / "cifar-10-batches-bin"
    files = []
    for path in (*(archive / f"data_batch_{number}.bin" for number in range(1, 6)), archive / "test_batch.bin"):
        size = path.stat().st_size if path.is_file() else 0
        if size == 0 or size % _RECORD_BYTES:
            raise TrainerError(
                f"{path} is missing or cut off: it holds {size} bytes, not whole records of {_RECORD_BYTES}; "
                f"unpack CIFAR-10's binary version (cifar-10-binary.tar.gz) in {archive}"
            )
        files.append(MappedArray(path, "uint8"))
    classes = archive / "batches.meta.txt"  # a file of the archive
    names = classes.read_text(encoding="utf-8", errors="replace").split() if classes.is_file() else range(_CLASSES)
    side = settings.image_size or _SIDE
    train = Records(files[:-1], settings.image_size)
    held_out = Records(files[-1:], settings.image_size)
    return Images(train, held_out, shape=(3, side, side), classes=tuple(map(str, names)))
