"""Small splits for tests of reading, importable by reading processes."""

from __future__ import annotations

import errno
import os
import signal

import numpy as np
import torch

from trainer.data.contract import BrokenSample, Fields, Indices, Split


class Rows(Split):
    """Sample i is the number i, in two tensors. Some cannot be read. `reads` has what was asked for, call by call."""

    def __init__(self, size: int, broken: tuple[int, ...] = (), blocks: tuple[int, ...] | None = None) -> None:
        self.blocks = blocks
        self.broken = broken
        self.reads: list[list[int]] = []
        self.expected: list[list[int]] = []
        self._size = size

    def __len__(self) -> int:
        return self._size

    def expect(self, indices: Indices) -> None:
        self.expected.append(indices.tolist())

    def read(self, indices: Indices) -> Fields:
        rows = indices.tolist()
        self.reads.append(rows)
        assert rows
        assert all(0 <= index < self._size for index in rows)
        for index in rows:
            if index in self.broken:
                raise BrokenSample(index, f"row {index}", "it is torn")
        numbers = torch.from_numpy(indices.copy())
        return {"number": numbers, "row": numbers.unsqueeze(1).repeat(1, 3).float()}


class Shaky(Rows):
    """Rows on a disk that fails at the first attempts."""

    def __init__(self, failures: int) -> None:
        super().__init__(10)
        self.failures = failures

    def read(self, indices: Indices) -> Fields:
        if self.failures and 3 in indices:
            self.failures -= 1
            raise BrokenSample(3, "row 3", "the disk") from OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(indices)


class Faulty(Rows):
    """Rows read by a program with a mistake; or `deadly`, of which one takes the reading process with it."""

    def __init__(self, *, deadly: bool) -> None:
        super().__init__(8)
        self.deadly = deadly

    def read(self, indices: Indices) -> Fields:
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("a mistake in the program")


def with_positions(fields: Fields, positions: Indices) -> Fields:
    """A transform that shows what it was given, and in which process."""
    assert positions.dtype == np.int64
    return fields | {
        "position": torch.from_numpy(positions),
        "pid": torch.full((len(positions),), os.getpid()),
        "drawn": torch.rand(len(positions), generator=torch.Generator().manual_seed(int(positions[0]))),
    }
