"""How many trials of a study share a GPU, by their measured memory. Pure."""

from __future__ import annotations

HEADROOM = 1.1
"""How much more than the largest earlier trial a trial may use."""


def trials_on_gpu(limit: int, total_bytes: int | None, foreign_bytes: int | None, peak_bytes: int | None) -> int:
    """How many trials fit on a GPU, at most ``limit``: into ``total_bytes`` beside the ``foreign_bytes`` of others,
    each with ``peak_bytes`` and some headroom. One if a value is unknown or not even one fits."""
    if limit < 2 or total_bytes is None or foreign_bytes is None or not peak_bytes:
        return 1
    return max(1, min(limit, int((total_bytes - foreign_bytes) / (peak_bytes * HEADROOM))))
