"""What all sources on disk share: where data lies, what is held out, mapped arrays, samples over several files."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Settings
from trainer.data.contract import Indices
from trainer.errors import SettingsError, TrainerError

# Beside token files and Parquet files: how many tokens there are, so that they are counted once.
COUNTS_FILE = ".token_counts.json"

Counts = tuple[int, int]  # tokens, and the largest of them

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
    """CRC-32 of each name. The held-out set does not change when files come or go."""
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


class MappedArray:
    """A one-dimensional array in a raw file of `dtype`, or in an .npy file, which knows its own.

    Only the path travels to other processes; each maps the file when it first reads. The file must not be cut while
    it is mapped: the kernel answers that with SIGBUS.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        """Raises OSError if the file cannot be opened, ValueError or EOFError where it holds no such array."""
        self.path = path
        self._dtype = dtype
        self._array: npt.NDArray[Any] | None = _open(path, dtype)
        self._size = len(self._array)

    def __len__(self) -> int:
        return self._size

    def array(self) -> npt.NDArray[Any]:
        """The array. Raises OSError if the file is gone, or is not the size that it was."""
        if self._array is None:
            try:
                array = _open(self.path, self._dtype)
            except (ValueError, EOFError) as error:
                raise OSError(str(error)) from error
            if len(array) != self._size:
                raise OSError(f"holds {len(array)} values and held {self._size} at first")
            self._array = array
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


def _open(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise ValueError(f"holds {array.dtype} of shape {array.shape}, not one row of whole numbers")
        return np.asarray(array)
    size, item = os.stat(path).st_size, np.dtype(dtype).itemsize  # noqa: PTH116
    if size == 0 or size % item:
        raise ValueError(f"holds {size} bytes, not a whole number of {dtype} values")
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


class PartLengths:
    """Lengths of parts that follow one another; part k holds `lengths[k]` samples."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self._ends = np.cumsum(np.array(self.lengths, dtype=np.int64))
        self._starts = self._ends - self.lengths

    def __len__(self) -> int:
        """Samples in all parts together."""
        return int(self._ends[-1]) if self.lengths else 0

    def place(self, index: int) -> tuple[int, int]:
        """The part that this sample lies in, and its offset there."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - int(self._starts[part])

    def numbers(self, indices: Indices) -> list[int]:
        """The parts that these samples lie in, each once, in the order of their first samples."""
        return list(dict.fromkeys(np.searchsorted(self._ends, indices, side="right").tolist()))

    def split(self, indices: Indices) -> Iterator[tuple[int, npt.NDArray[np.intp], Indices]]:
        """For each part in use: its number, the places in `indices` that lie in it, and their offsets in the part."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        for number in self.numbers(indices):
            places = np.flatnonzero(numbers == number)
            yield number, places, indices[places] - self._starts[number]


def out_of_range(tokens: npt.NDArray[np.int64], vocabulary: int) -> int | None:
    """The first row of [n, tokens] with a token that is not 0 .. vocabulary - 1; None if there is none."""
    if not tokens.size or (tokens.max() < vocabulary and tokens.min() >= 0):
        return None
    return int(np.flatnonzero(((tokens >= vocabulary) | (tokens < 0)).any(axis=1))[0])


def windows_in(tokens: int, context: int) -> int:
    """Windows of context + 1 tokens, each beginning with the last token of the one before: stride `context`."""
    return max(0, (tokens - 1) // context)


def kept_counts(path: Path) -> dict[str, Counts]:
    """Counts that were kept at an earlier start."""
    try:
        written = json.loads(path.read_bytes())
        return {str(key): (int(tokens), int(largest)) for key, (tokens, largest) in written.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # none yet, or not what was written: all is counted again


def keep_counts(path: Path, counts: dict[str, Counts]) -> None:
    """Writes them where that is allowed; several ranks may do so at once, each with the same counts."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps(counts))
        new.replace(path)
    except OSError:  # a folder that cannot be written to: counting again at the next start is all that is lost
        new.unlink(missing_ok=True)
