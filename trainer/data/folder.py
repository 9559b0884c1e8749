"""Folders of images: train/<class>/* and val/<class>/*, decoded when they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices
from trainer.data.files import HELD_OUT_NAMES, name_hashes, reason_of, require_data_dir
from trainer.data.pixels import Shape, UndecodableError, decode, first_shape, require_pillow
from trainer.errors import TrainerError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_HELD_OUT_ONE_IN = 10


class PackedNames:
    """File names in two arrays.

    A list of a million strings would be copied page by page into every forked reader, because each access changes a
    reference count.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(names), dtype=np.uint8)
        self._ends = np.cumsum(np.array([len(name) for name in names], dtype=np.int64))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = self._ends[number - 1] if number else 0
        return os.fsdecode(self._bytes[start : self._ends[number]].tobytes())


class ImageFiles:
    """Image files below `root` and their classes."""

    blocks = None

    def __init__(
        self, root: Path, names: Sequence[bytes], labels: npt.NDArray[np.int64], size: int, shape: Shape
    ) -> None:
        """`size` is the side that images are resized to (0: not resized), and `shape` the resulting shape of each."""
        self._root = root
        self._names = PackedNames(names)
        self._labels = labels
        self._size = size
        self._shape = shape

    def __len__(self) -> int:
        return len(self._names)

    def read(self, indices: Indices) -> Fields:
        images = torch.empty((len(indices), *self._shape), dtype=torch.uint8)
        for row, index in enumerate(indices.tolist()):
            path = self._root / self._names[index]
            try:
                images[row] = decode(path.read_bytes(), self._size, self._shape)
            except OSError as error:
                raise BrokenSample(index, str(path), reason_of(error)) from error
            except UndecodableError as error:
                raise BrokenSample(index, str(path), str(error)) from error
        return {"image": images, "label": torch.from_numpy(self._labels[indices])}


def folder(settings: Settings) -> Images:
    """The images of train/<class>/ and val/<class>/ in --data-dir, RGB; classes are in the order of their names.

    The held-out folder may be called val, validation or test. Without one, about one file in ten is held out, chosen by
    its path. Raises TrainerError for another layout, or where no image can be read.
    """
    require_pillow("images")
    root = require_data_dir(settings, "train/CLASS/*.png (or jpg, webp, bmp)")
    if not (root / "train").is_dir():
        raise TrainerError(f"{root} has no folder train with a folder of images for each class")
    classes = _class_folders(root / "train")
    names, labels = _list_images(root, "train", classes)
    held_out_name = next((name for name in HELD_OUT_NAMES if (root / name).is_dir()), None)
    if held_out_name is None:
        is_held_out = _choose_held_out(names)
        train = [name for name, held in zip(names, is_held_out, strict=True) if not held]
        held_out = [name for name, held in zip(names, is_held_out, strict=True) if held]
        train_labels, held_out_labels = labels[~is_held_out], labels[is_held_out]
    else:
        unknown = sorted(set(_class_folders(root / held_out_name)) - set(classes))
        if unknown:
            raise TrainerError(f"{root / held_out_name / unknown[0]} is a class that {root / 'train'} does not have")
        train, train_labels = names, labels
        held_out, held_out_labels = _list_images(root, held_out_name, classes)
    if not train or not held_out:
        raise TrainerError(
            f"{root} has {len(train)} images to train on and {len(held_out)} to validate on ({', '.join(SUFFIXES)})"
        )
    size = settings.image_size
    contents = ((root / os.fsdecode(name)).read_bytes for name in train)
    shape = first_shape(contents, size, str(root / "train"))
    return Images(
        train=ImageFiles(root, train, train_labels, size, shape),
        held_out=ImageFiles(root, held_out, held_out_labels, size, shape),
        shape=shape,
        classes=tuple(classes),
    )


def _class_folders(parent: Path) -> list[str]:
    names = [entry.name for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith(".")]
    if not names:
        raise TrainerError(f"{parent} has no folders: one for each class is expected, with its images")
    return sorted(names)


def _list_images(root: Path, split: str, classes: Sequence[str]) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Image paths relative to `root`, sorted within each class, and their class numbers."""
    names: list[bytes] = []
    counts = []
    for class_name in classes:
        paths = []
        for parent, folders, files in os.walk(root / split / class_name):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = os.path.relpath(parent, root)
            paths += [f"{relative}/{file}" for file in files if file.lower().endswith(SUFFIXES) and file[0] != "."]
        names += [os.fsencode(path) for path in sorted(paths)]
        counts.append(len(paths))
    return names, np.repeat(np.arange(len(classes), dtype=np.int64), counts)


def _choose_held_out(names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Mark the held-out names by their hashes: of two or more names at least one, and never all."""
    hashes = name_hashes(names)
    is_held_out: npt.NDArray[np.bool_] = hashes % _HELD_OUT_ONE_IN == 0
    if len(names) > 1 and (is_held_out.all() or not is_held_out.any()):
        is_held_out = np.arange(len(names)) == hashes.argmin()
    return is_held_out
