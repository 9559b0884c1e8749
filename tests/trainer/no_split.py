"""For tests of what only asks data for its shape."""

from __future__ import annotations

from trainer.data.contract import Fields, Indices, Split


class NoSplit(Split):
    """A split without samples."""

    def __len__(self) -> int:
        return 0

    def read(self, indices: Indices) -> Fields:
        return {}
