"""Windows of context + 1 tokens: inputs and, shifted by one, targets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def window_count(tokens: int, context: int) -> int:
    """Windows in a stream of `tokens`, with stride `context`: each starts with the last token of the one before."""
    return max(0, (tokens - 1) // context)


def first_out_of_range(tokens: npt.NDArray[np.int64], vocabulary: int) -> int | None:
    """The first row of `tokens` [n, context + 1] with a token outside 0 .. vocabulary - 1; None if there is none."""
    if not tokens.size or (tokens.max() < vocabulary and tokens.min() >= 0):
        return None
    return int(np.flatnonzero(((tokens >= vocabulary) | (tokens < 0)).any(axis=1))[0])
