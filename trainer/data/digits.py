"""scikit-learn's scanned digits: small, real, and there without a download."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.config import Settings
from trainer.data.contract import Fields, Images, Indices
from trainer.data.pixels import resize
from trainer.errors import TrainerError


class ImageTable:
    """Images, uint8 [n, channels, height, width], and their classes, int64 [n], in memory."""

    blocks = None

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, indices: Indices) -> Fields:
        chosen = torch.from_numpy(indices)
        return {"image": self._images[chosen], "label": self._labels[chosen]}


def digits(settings: Settings) -> Images:
    """1797 images of 8 x 8 pixels, one channel; every fifth one is held out, whatever the seed.

    The table's grey values 0 .. 16 become 0 .. 255: value v is 255 v / 16, halves rounded up. It is read from the
    installed package without importing it: that would take most of a second on every rank.
    """
    package = importlib.util.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or []
    tables = [path for folder in folders if (path := Path(folder) / "datasets" / "data" / "digits.csv.gz").is_file()]
    if not tables:
        raise TrainerError("--data digits needs the digits that come with scikit-learn: pip install scikit-learn")
    with gzip.open(tables[0], "rt", encoding="ascii") as lines:  # 64 pixels of 0..16, then the class
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.int64))
    pixels = (table[:, :-1] * 255 + 8).div(16, rounding_mode="floor").to(torch.uint8)
    images, labels = resize(pixels.view(-1, 1, 8, 8), settings.image_size), table[:, -1].clone()
    held_out = torch.arange(len(labels)) % 5 == 0
    return Images(
        train=ImageTable(images[~held_out], labels[~held_out]),
        held_out=ImageTable(images[held_out], labels[held_out]),
        shape=(1, images.shape[2], images.shape[3]),
        classes=tuple("0123456789"),
    )
