"""Packing documents into rows of equal length, best fit decreasing.

Ding et al., "Fewer Truncations Improve Language Modeling" (2024), section 3.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainer.tokenizer import Encoded

# Bits of a token's mark, a byte.
LEARN = 1  # the loss covers the prediction of this token
BEGIN = 2  # a document, or padding, begins here: attention does not cross to earlier tokens


def split_document(document: Encoded, row: int) -> list[Encoded]:
    """Split a document into pieces of at most `row` tokens, each starting with the last token of the one before.

    So every token is predicted once. Pieces without a token to learn are dropped.
    """
    starts = range(0, max(1, len(document.tokens) - 1), row - 1)
    pieces = (Encoded(document.tokens[at : at + row], document.learn[at : at + row]) for at in starts)
    return [piece for piece in pieces if piece.learn[1:].any()]


def best_fit(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Pack pieces of these lengths, each at most `row`, and return the numbers of the pieces in each row.

    The longest piece comes first; each goes into the row where it leaves the least room.
    """
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # tokens of room left, and the row, sorted
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        at = bisect_left(rooms, (lengths[number], 0))
        if at == len(rooms):
            rooms.append((row, len(rows)))
            rows.append([])
        room, target = rooms.pop(at)
        rows[target].append(number)
        if room > lengths[number]:
            insort(rooms, (room - lengths[number], target))
    return rows


def pack(pieces: Sequence[Encoded], row: int, pad: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Pack pieces of at most `row` tokens. Returns tokens and marks [rows, row]; `pad` fills the rest of each row."""
    rows = best_fit([len(piece.tokens) for piece in pieces], row)
    tokens = np.full((len(rows), row), pad, dtype=np.uint32)
    marks = np.zeros((len(rows), row), dtype=np.uint8)
    for number, members in enumerate(rows):
        start = 0
        for piece in (pieces[member] for member in members):
            end = start + len(piece.tokens)
            tokens[number, start:end] = piece.tokens
            marks[number, start + 1 : end] = piece.learn[1:] * LEARN
            marks[number, start] = BEGIN
            start = end
        if start < row:
            marks[number, start] = BEGIN
    return tokens, marks
