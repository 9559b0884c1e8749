"""Samples that lie in several files or row groups, numbered through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trainer.data.contract import Indices


class Parts:
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
    """The first row of [n, tokens] with a token that is not 0 .. vocabulary - 1; None where there is none."""
    if not tokens.size or (tokens.max() < vocabulary and tokens.min() >= 0):
        return None
    return int(np.flatnonzero(((tokens >= vocabulary) | (tokens < 0)).any(axis=1))[0])


def windows_in(tokens: int, context: int) -> int:
    """Windows of context + 1 tokens, each beginning with the last token of the one before: stride `context`."""
    return max(0, (tokens - 1) // context)
