"""Folders of images: train/<class>/* and val/<class>/*, decoded when they are read."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices
from trainer.data.disk import HELD_OUT_NAMES, content_of, data_place, name_hashes, why
from trainer.data.pixels import Shape, UndecodableError, decode, first_shape, require_pillow
from trainer.errors import TrainerError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_HELD_OUT_ONE_IN = 10


class Names:
    """Many names in two arrays.

    A list of a million strings would be copied page by page into every reading process, as each use of one changes
    its reference count.
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
        """`size` is the side that images are resized to, 0 for none; `shape` is that of every image then."""
        self._root = root
        self._names = Names(names)
        self._labels = labels
        self._size = size
        self._shape = shape

    def __len__(self) -> int:
        return len(self._names)

    def read(self, indices: Indices) -> Fields:
        images = torch.empty((len(indices), *self._shape), dtype=torch.uint8)
        for place, index in enumerate(indices.tolist()):
            path = self._root / self._names[index]
            try:
                images[place] = decode(content_of(path), self._size, self._shape)
            except OSError as error:
                raise BrokenSample(index, str(path), why(error)) from error
            except UndecodableError as error:
                raise BrokenSample(index, str(path), str(error)) from error
        return {"image": images, "label": torch.from_numpy(self._labels[indices])}


def folder(settings: Settings) -> Images:
    """The images of train/<class>/ and val/<class>/ in --data-dir, RGB; classes are in the order of their names.

    The held-out folder may be called val, validation or test. Without one, about one file in ten is held out, chosen by
    its path. Raises TrainerError for another layout, or where no image can be read.
    """
    require_pillow("images")
    root = data_place(settings, "train/CLASS/*.png (or jpg, webp, bmp)")
    if not (root / "train").is_dir():
        raise TrainerError(f"{root} has no folder train with a folder of images for each class")
    classes = _class_folders(root / "train")
    names, labels = _images(root, "train", classes)
    held_out_name = next((name for name in HELD_OUT_NAMES if (root / name).is_dir()), None)
    if held_out_name is None:
        picked = _picked(names)
        train = [name for name, held in zip(names, picked, strict=True) if not held]
        held_out = [name for name, held in zip(names, picked, strict=True) if held]
        train_labels, held_out_labels = labels[~picked], labels[picked]
    else:
        strange = sorted(set(_class_folders(root / held_out_name)) - set(classes))
        if strange:
            raise TrainerError(f"{root / held_out_name / strange[0]} is a class that {root / 'train'} does not have")
        train, train_labels = names, labels
        held_out, held_out_labels = _images(root, held_out_name, classes)
    if not train or not held_out:
        raise TrainerError(
            f"{root} has {len(train)} images to train on and {len(held_out)} to validate on ({', '.join(SUFFIXES)})"
        )
    size = settings.image_size
    contents = (functools.partial(content_of, root / os.fsdecode(name)) for name in train)
    shape = first_shape(contents, size, str(root / "train"))
    return Images(
        train=ImageFiles(root, train, train_labels, size, shape),
        held_out=ImageFiles(root, held_out, held_out_labels, size, shape),
        shape=shape,
        classes=tuple(classes),
    )


def _class_folders(parent: Path) -> list[str]:
    found = [entry.name for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith(".")]
    if not found:
        raise TrainerError(f"{parent} has no folders: one for each class is expected, with its images")
    return sorted(found)


def _images(root: Path, part: str, classes: Sequence[str]) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Paths relative to `root`, sorted within each class, and the numbers of their classes."""
    names: list[bytes] = []
    counts = []
    for name in classes:
        found = []
        for parent, folders, files in os.walk(root / part / name):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below = os.path.relpath(parent, root)
            found += [f"{below}/{file}" for file in files if file.lower().endswith(SUFFIXES) and file[0] != "."]
        names += [os.fsencode(file) for file in sorted(found)]
        counts.append(len(found))
    return names, np.repeat(np.arange(len(classes), dtype=np.int64), counts)


def _picked(names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Which of these are held out; of two or more at least one, and never all."""
    hashes = name_hashes(names)
    picked: npt.NDArray[np.bool_] = hashes % _HELD_OUT_ONE_IN == 0
    if len(names) > 1 and (picked.all() or not picked.any()):
        picked = np.arange(len(names)) == hashes.argmin()
    return picked
