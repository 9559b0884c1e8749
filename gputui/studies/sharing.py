"""How many trials of a study share a GPU: by the memory that they were measured to take. Pure."""

from __future__ import annotations

HEADROOM = 1.1
"""A trial may take so much more than the largest of those before it."""


def trials_on_gpu(most: int, total_bytes: int | None, foreign_bytes: int | None, peak_bytes: int | None) -> int:
    """How many trials may be on a GPU at a time, ``most`` at most: as many as fit into ``total_bytes`` beside the
    ``foreign_bytes`` of others, each with ``peak_bytes`` and some more. While one of the three is unknown, or not even
    one fits, it is one."""
    if most < 2 or total_bytes is None or foreign_bytes is None or not peak_bytes:
        return 1
    return max(1, min(most, int((total_bytes - foreign_bytes) / (peak_bytes * HEADROOM))))
