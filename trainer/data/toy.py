"""Data that needs no files: scikit-learn's digits, and images and tokens computed from the number of a sample."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.contract import Fields, Images, Indices, Split, TensorSplit, Text
from trainer.data.images import resize
from trainer.data.randomness import hashed
from trainer.data.text import BYTES
from trainer.errors import TrainerError

_CLASSES = 10
_SIDE = 32
_NOISE_BYTES = 1 << 22  # random bytes that the noise of every image is cut from
_PATCHES = 4  # a class is a pattern of 4 x 4 patches
_HELD_OUT = 1 << 40  # held-out samples are numbered from here
_STRIDES = 16


def digits(settings: Settings) -> Images:
    """1797 images of 8 x 8 pixels, one channel; every fifth one is held out, for any seed.

    The table's grey values 0 .. 16 become 0 .. 255: value v is 255 v / 16, halves rounded up.
    """
    package = importlib.util.find_spec("sklearn")  # not imported: that would take most of a second on every rank
    if package is None or package.origin is None:
        raise TrainerError("--data digits needs the digits that come with scikit-learn: pip install scikit-learn")
    # 64 pixels of 0 .. 16, then the class
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=int)
    pixels = torch.from_numpy((table[:, :-1] * 255 + 8) // 16).to(torch.uint8)
    labels = torch.from_numpy(table[:, -1])
    images = resize(pixels.view(-1, 1, 8, 8), settings.image_size)
    held_out = torch.arange(len(labels)) % 5 == 0
    return Images(
        train=TensorSplit({"image": images[~held_out], "label": labels[~held_out]}),
        held_out=TensorSplit({"image": images[held_out], "label": labels[held_out]}),
        shape=(1, images.shape[2], images.shape[3]),
        classes=tuple("0123456789"),
    )


class SyntheticImages(Split):
    """A pattern for each class, under noise: pixel = pattern (0 .. 127) + noise (0 .. 127)."""

    def __init__(self, samples: int, first: int, side: int) -> None:
        random = np.random.Generator(np.random.Philox(0))
        patches = torch.from_numpy(random.integers(0, 128, (_CLASSES, 3, _PATCHES, _PATCHES), dtype=np.uint8))
        self._patterns = torch.nn.functional.interpolate(patches, size=(side, side), mode="nearest").numpy()
        pixels = 3 * side * side
        self._noise = random.integers(0, 128, _NOISE_BYTES + pixels, dtype=np.uint8)
        self._samples = samples
        self._first = first

    def __len__(self) -> int:
        return self._samples

    def read(self, indices: Indices) -> Fields:
        hashes = hashed((indices + self._first).astype(np.uint64))
        labels = (hashes % np.uint64(_CLASSES)).astype(np.int64)
        images = self._patterns[labels]
        starts = ((hashes >> np.uint64(20)) % np.uint64(_NOISE_BYTES)).tolist()
        for image, start in zip(images, starts, strict=True):
            image += self._noise[start : start + image.size].reshape(image.shape)
        return {"image": torch.from_numpy(images), "label": torch.from_numpy(labels)}


@dataclass(frozen=True)
class SyntheticTokens(Split):
    """Windows that count up: each from a start and by a stride (1 .. 16) of its own, modulo the vocabulary."""

    samples: int
    first: int
    context: int
    vocabulary: int

    def __len__(self) -> int:
        return self.samples

    def read(self, indices: Indices) -> Fields:
        hashes = hashed((indices + self.first).astype(np.uint64))
        starts = (hashes % np.uint64(self.vocabulary)).astype(np.int64)
        strides = (hashes >> np.uint64(40)).astype(np.int64) % _STRIDES + 1
        counted = starts[:, None] + strides[:, None] * np.arange(self.context + 1)
        return {"tokens": torch.from_numpy(counted % self.vocabulary)}


def synthetic_images(settings: Settings) -> Images:
    """--synthetic-samples images, RGB, --image-size pixels a side (32 unless given), and a tenth as many held out."""
    side = settings.image_size or _SIDE
    samples = settings.synthetic_samples
    return Images(
        train=SyntheticImages(samples, 0, side),
        held_out=SyntheticImages(max(2, samples // 10), _HELD_OUT, side),
        shape=(3, side, side),
        classes=tuple(map(str, range(_CLASSES))),
    )


def synthetic_text(settings: Settings) -> Text:
    """--synthetic-samples windows of as many tokens as the task's models know, and a tenth as many held out."""
    if settings.model in ("auto", "bytes"):
        vocabulary = BYTES
    elif settings.task == "lm":
        vocabulary = 50257  # of GPT-2
    else:
        vocabulary = 30522  # of BERT
    samples = settings.synthetic_samples
    context = settings.context
    train = SyntheticTokens(samples, 0, context, vocabulary)
    held_out = SyntheticTokens(max(2, samples // 10), _HELD_OUT, context, vocabulary)
    return Text(train, held_out, context, vocabulary)
