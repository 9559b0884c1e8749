"""Files below --data-dir: which are held out, arrays mapped into memory, numbering through, cached counts of tokens."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Indices
from trainer.errors import SettingsError, TrainerError, one_line

Source = TypeVar("Source")
Content = TypeVar("Content")

COUNTS_FILE = ".token_counts.json"
_COUNTING_THREADS = 4  # enough for one disk's queue

# Names, or starts of names, of folders and files with held-out samples, in the order of precedence.
HELD_OUT_NAMES = ("val", "validation", "test")
HELD_OUT_ONE_IN = 10  # the usual tenth where a data set has no split of its own


def require_data_dir(settings: Settings, expected: str, *, allow_file: bool = False) -> Path:
    """Return --data-dir, an existing folder (or file, if `allow_file`). `expected` names its content in errors.

    Raises SettingsError if it is not set, and TrainerError if it does not exist or is of the wrong kind.
    """
    path = settings.data_dir
    if path is None:
        raise SettingsError(f"--data {settings.data} needs --data-dir, a folder with {expected}")
    if not path.is_dir() and not (allow_file and path.exists()):
        problem = "is not a folder" if path.exists() else "does not exist"
        raise TrainerError(f"--data-dir {path} {problem}; --data {settings.data} looks there for {expected}")
    return path


def name_hashes(names: Iterable[bytes]) -> npt.NDArray[np.int64]:
    """CRC-32 of each name. A file held out by its name stays held out when other files come or go."""
    return np.fromiter((zlib.crc32(name) for name in names), dtype=np.int64)


class MappedArray:
    """A one-dimensional array in a raw file of `dtype`, or in an .npy file, which has its own type.

    Pickles as the path; each process maps the file at its first access. The file must not be truncated while it is
    mapped: the kernel answers an access with SIGBUS. Raises TrainerError if the file holds no such array.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self._dtype = dtype
        try:
            self._array: npt.NDArray[Any] | None = self._map()
        except (OSError, ValueError, EOFError) as error:
            raise TrainerError(f"{path} cannot be used as a row of {dtype}: {one_line(error)}") from error
        self._size = len(self._array)

    def __len__(self) -> int:
        return self._size

    def array(self) -> npt.NDArray[Any]:
        """The array. Raises OSError if the file is gone, and ValueError if its size has changed."""
        if self._array is None:
            self._array = self._map()
            if len(self._array) != self._size:
                raise ValueError(f"it holds {len(self._array)} values and held {self._size} at first")
        return self._array

    def _map(self) -> npt.NDArray[Any]:
        if self.path.suffix != ".npy":
            return np.asarray(np.memmap(self.path, dtype=self._dtype, mode="r"))
        array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise ValueError(f"it holds {array.dtype} of shape {array.shape}, not one row of whole numbers")
        return np.asarray(array)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


class Concatenation:
    """Parts one after another, numbered from 0; part k holds `lengths[k]` samples. Parts may be empty."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self._ends = np.cumsum(np.array(self.lengths, dtype=np.int64))
        self._starts = self._ends - self.lengths

    def __len__(self) -> int:
        """Samples in all parts together."""
        if self.lengths:
            return int(self._ends[-1])
        return 0

    def locate(self, index: int) -> tuple[int, int]:
        """The part of a sample, and the sample's offset in it."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - int(self._starts[part])

    def parts_of(self, indices: Indices) -> list[int]:
        """The parts of these samples, each once, in the order of their first samples."""
        return list(dict.fromkeys(np.searchsorted(self._ends, indices, side="right").tolist()))

    def group(self, indices: Indices) -> Iterator[tuple[int, npt.NDArray[np.intp], Indices]]:
        """Group samples by part, in the order of `parts_of`.

        Yields the part, the rows of `indices` that lie in it, and their samples' offsets in the part.
        """
        parts = np.searchsorted(self._ends, indices, side="right")
        for part in self.parts_of(indices):
            rows = np.flatnonzero(parts == part)
            yield part, rows, indices[rows] - self._starts[part]


class SamplesOfPart(NamedTuple, Generic[Source, Content]):
    """The samples of a request that lie in one part of the data.

    Attributes:
        source: where the part is from, for messages.
        rows: the places of the samples in the request.
        offsets: their places in the part.
    """

    source: Source
    content: Content
    rows: npt.NDArray[np.intp]
    offsets: Indices


def grouped(
    files: Sequence[MappedArray], parts: Concatenation, indices: Indices
) -> Iterator[SamplesOfPart[str, npt.NDArray[Any]]]:
    """Group samples like `parts.group`, with the path and array of each part. Raises BrokenSample for a lost file."""
    for part, rows, offsets in parts.group(indices):
        path = str(files[part].path)
        try:
            array = files[part].array()
        except (OSError, ValueError) as error:
            raise BrokenSample(int(indices[rows[0]]), path, error) from error
        yield SamplesOfPart(path, array, rows, offsets)


class TokenCount(NamedTuple):
    """Tokens of a file or row group, and the largest of them."""

    tokens: int
    largest: int


def cached_token_counts(
    folder: Path, sources: Sequence[tuple[Path, str]], count: Callable[[int], TokenCount]
) -> list[TokenCount]:
    """The count of each source, a file below `folder` and its part, from the folder's cache where it has it.

    `count` reads the data of the source of a number, in a thread. A file that has changed is counted again. Counts of
    other sources are dropped from the cache.
    """
    keys = []
    for file, part in sources:
        status = file.stat()
        keys.append(f"{file.relative_to(folder).as_posix()}:{status.st_size}:{status.st_mtime_ns}:{part}")
    path = folder / COUNTS_FILE
    cached: dict[str, TokenCount] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # absent or damaged: counted again
        cached = {key: TokenCount(*map(int, values)) for key, values in json.loads(path.read_bytes()).items()}
    missing = [number for number, key in enumerate(keys) if key not in cached]
    if missing:
        with ThreadPoolExecutor(_COUNTING_THREADS) as threads:
            cached |= zip((keys[number] for number in missing), threads.map(count, missing), strict=True)
        # Ranks may write concurrently: they write the same. If the folder is read-only, the next start counts again.
        with contextlib.suppress(OSError):
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps({key: cached[key] for key in keys}))
            temporary.replace(path)
    return [cached[key] for key in keys]
