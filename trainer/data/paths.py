"""The folder of --data-dir, the split of its files into training and held-out ones, and reading one file."""

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

# Names, or starts of names, of folders and files with held-out samples, in the order of precedence.
HELD_OUT_NAMES = ("val", "validation", "test")


def require_data_dir(settings: Settings, expected: str, *, allow_file: bool = False) -> Path:
    """Return --data-dir, an existing folder (or file, if `allow_file`). `expected` names its content in errors.

    Raises SettingsError if it is not set, and TrainerError if it does not exist or is of the wrong kind.
    """
    path = settings.data_dir
    if path is None:
        raise SettingsError(f"--data {settings.data} needs --data-dir, a folder with {expected}")
    if not path.exists():
        raise TrainerError(f"--data-dir {path} does not exist; --data {settings.data} looks there for {expected}")
    if not path.is_dir() and not allow_file:
        raise TrainerError(f"--data-dir {path} is not a folder; --data {settings.data} needs a folder with {expected}")
    return path


def name_hashes(names: Iterable[bytes]) -> npt.NDArray[np.int64]:
    """CRC-32 of each name. A file held out by its name stays held out when other files come or go."""
    return np.fromiter((zlib.crc32(name) for name in names), dtype=np.int64)


def read_file(path: Path) -> bytes:
    """Read a regular file. Raises OSError, also for a pipe or device, which could block forever."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def reason_of(error: OSError) -> str:
    """The message of an error without its number and path, for sentences that name the path themselves."""
    return error.strerror or str(error)
