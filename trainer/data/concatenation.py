"""Sample numbers of several files or row groups that follow one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices


class Concatenation:
    """Parts one after another, numbered from 0; part k holds `lengths[k]` samples. Parts may be empty."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self._ends = np.cumsum(np.array(self.lengths, dtype=np.int64))
        self._starts = self._ends - self.lengths

    def __len__(self) -> int:
        """Samples in all parts together."""
        return int(self._ends[-1]) if self.lengths else 0

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
