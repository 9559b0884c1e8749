"""CIFAR-10 in its official binary form: records of one byte for the class and 3 x 32 x 32 bytes of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices
from trainer.data.files import Concatenation, MappedArray, reason_of, require_data_dir
from trainer.data.pixels import resize
from trainer.errors import TrainerError

SIDE = 32
RECORD_BYTES = 1 + 3 * SIDE * SIDE
CLASSES = 10

_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_HELD_OUT = ("test_batch.bin",)


class Records:
    """The records of some batch files, mapped into memory."""

    blocks = None

    def __init__(self, files: Sequence[MappedArray], size: int) -> None:
        """`size` is the side that images are resized to; 0 leaves them at 32."""
        self._files = tuple(files)
        self._parts = Concatenation([len(file) // RECORD_BYTES for file in files])
        self._size = size

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, indices: Indices) -> Fields:
        records = np.empty((len(indices), RECORD_BYTES), dtype=np.uint8)
        for part, rows, offsets in self._parts.group(indices):
            file = self._files[part]
            try:
                records[rows] = file.array().reshape(-1, RECORD_BYTES)[offsets]
            except OSError as error:
                raise BrokenSample(int(indices[rows[0]]), str(file.path), reason_of(error)) from error
            unknown = np.flatnonzero(records[rows, 0] >= CLASSES)
            if len(unknown):
                row = rows[unknown[0]]
                where = f"{file.path}, record {offsets[unknown[0]]}"
                raise BrokenSample(int(indices[row]), where, f"its class is {records[row, 0]}, not 0 .. 9")
        images = torch.from_numpy(records[:, 1:].reshape(-1, 3, SIDE, SIDE))
        return {"image": resize(images, self._size), "label": torch.from_numpy(records[:, 0].astype(np.int64))}


def cifar10(settings: Settings) -> Images:
    """The five training batches and, held out, the test batch. Raises TrainerError if one is missing or cut off."""
    folder = require_data_dir(settings, "data_batch_1.bin .. data_batch_5.bin and test_batch.bin")
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    side = settings.image_size or SIDE
    return Images(
        train=Records([_batch(folder, name) for name in _TRAIN], settings.image_size),
        held_out=Records([_batch(folder, name) for name in _HELD_OUT], settings.image_size),
        shape=(3, side, side),
        classes=_class_names(folder),
    )


def _batch(folder: Path, name: str) -> MappedArray:
    path = folder / name
    if not path.is_file():
        raise TrainerError(f"{path} is missing; unpack CIFAR-10's binary version (cifar-10-binary.tar.gz) in {folder}")
    size = path.stat().st_size
    if size == 0 or size % RECORD_BYTES:
        raise TrainerError(
            f"{path} holds {size} bytes, not whole records of {RECORD_BYTES}: it is cut off; unpack the archive again"
        )
    return MappedArray(path, "uint8")


def _class_names(folder: Path) -> tuple[str, ...]:
    """The names in batches.meta.txt, a file of the archive; without it the numbers of the classes."""
    path = folder / "batches.meta.txt"
    if not path.is_file():
        return tuple(map(str, range(CLASSES)))
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != CLASSES:
        raise TrainerError(f"{path} names {len(names)} classes, not {CLASSES}; unpack the archive again or remove it")
    return names
