"""Arrays of numbers in files, mapped into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class MappedArray:
    """A one-dimensional array in a raw file of `dtype`, or in an .npy file, which has its own type.

    Pickles as the path; each process maps the file at its first access. The file must not be truncated while it is
    mapped: the kernel answers an access with SIGBUS.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        """Raises OSError if the file cannot be opened, ValueError or EOFError if it holds no such array."""
        self.path = path
        self._dtype = dtype
        self._array: npt.NDArray[Any] | None = _map_file(path, dtype)
        self._size = len(self._array)

    def __len__(self) -> int:
        return self._size

    def array(self) -> npt.NDArray[Any]:
        """The array. Raises OSError if the file is gone or its size has changed."""
        if self._array is None:
            try:
                array = _map_file(self.path, self._dtype)
            except (ValueError, EOFError) as error:
                raise OSError(str(error)) from error
            if len(array) != self._size:
                raise OSError(f"holds {len(array)} values and held {self._size} at first")
            self._array = array
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


def _map_file(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise ValueError(f"holds {array.dtype} of shape {array.shape}, not one row of whole numbers")
        return np.asarray(array)
    size, item = os.stat(path).st_size, np.dtype(dtype).itemsize  # noqa: PTH116
    if size == 0 or size % item:
        raise ValueError(f"holds {size} bytes, not a whole number of {dtype} values")
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
