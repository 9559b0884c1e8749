"""For tests of what only asks data for its shape."""

from __future__ import annotations

from trainer.data.contract import Fields, Indices


class NoSplit:
    """A split without samples."""

    blocks = None

    def __len__(self) -> int:
        return 0

    def read(self, indices: Indices) -> Fields:
        return {}
