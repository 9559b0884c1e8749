"""Where data lies and which part of it is held out: what all sources on disk have in common."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.config import Settings
from trainer.errors import SettingsError, TrainerError

# Folders and file names that hold what is held out from training, the first one found.
HELD_OUT_NAMES = ("val", "validation", "test")


def data_place(settings: Settings, holds: str, file_allowed: bool = False) -> Path:
    """The folder of --data-dir. Raises one line that says what it should hold where it is not given or not there."""
    place = settings.data_dir
    if place is None:
        raise SettingsError(f"--data {settings.data} needs --data-dir, a folder with {holds}")
    if not place.exists():
        raise TrainerError(f"--data-dir {place} does not exist; --data {settings.data} looks there for {holds}")
    if not place.is_dir() and not file_allowed:
        raise TrainerError(f"--data-dir {place} is not a folder; --data {settings.data} needs a folder with {holds}")
    return place


def name_hashes(names: Iterable[bytes]) -> npt.NDArray[np.int64]:
    """CRC-32 of each name. What is held out by it stays held out whatever files come or go beside it."""
    return np.fromiter((zlib.crc32(name) for name in names), dtype=np.int64)


def content_of(path: Path) -> bytes:
    """All bytes of a file. Raises OSError, also for what is no file: opening a pipe would wait for ever."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def why(error: OSError) -> str:
    """What went wrong, without the number of the error and the path, which the message has already."""
    return error.strerror or str(error)
