"""Arrays in files, mapped into memory: the kernel reads the pages that are used, and all processes share them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class MappedArray:
    """A one-dimensional array in a raw file of `dtype`, or in an .npy file, which knows its own.

    Only the path travels to other processes; each maps the file when it first reads. The file must not be cut while
    it is mapped: the kernel answers that with SIGBUS.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        """Raises OSError where the file cannot be opened, ValueError or EOFError where it holds no such array."""
        self.path = path
        self._dtype = dtype
        self._array: npt.NDArray[Any] | None = _open(path, dtype)
        self._size = len(self._array)

    def __len__(self) -> int:
        return self._size

    def array(self) -> npt.NDArray[Any]:
        """The array. Raises OSError where the file is gone, or is not the size that it was."""
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
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"holds {array.dtype} of shape {array.shape}, not one row of whole numbers")
        return np.asarray(array)
    size, item = os.stat(path).st_size, np.dtype(dtype).itemsize  # noqa: PTH116
    if size == 0 or size % item:
        raise ValueError(f"holds {size} bytes, not a whole number of {dtype} values")
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
