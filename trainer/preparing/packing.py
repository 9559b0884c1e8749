"""Documents into rows of one length: Ding et al., "Fewer Truncations Improve Language Modeling" (2024), section 3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainer.tokenizer import Encoded

# Bits of a token's mark, one byte per token beside the tokens.
LEARN = 1  # the loss counts this token, as the one to be predicted
BEGIN = 2  # a document, or padding, begins: attention does not look back behind it


def cut(document: Encoded, row: int) -> list[Encoded]:
    """A text in pieces of at most `row` tokens, each of which begins with the last token of the one before.

    So every token is predicted once. What has nothing to learn is left out.
    """
    pieces = []
    for start in range(0, max(1, len(document.tokens) - 1), row - 1):
        piece = Encoded(document.tokens[start : start + row], document.learn[start : start + row])
        if piece.learn[1:].any():
            pieces.append(piece)
    return pieces


def best_fit(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Which of the `lengths`, each at most `row`, share a row: the longest first, each where it leaves least room."""
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(row + 1)]  # rows by the room that is left in them
    rooms = 0  # bit n: there is a row with room n
    for number in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        length = lengths[number]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            place = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, place = row, len(rows)
            rows.append([])
        rows[place].append(number)
        with_room[room - length].append(place)
        rooms |= 1 << (room - length)
    return rows


def packed(pieces: Sequence[Encoded], row: int, pad: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Tokens and marks [rows, row] of pieces of at most `row` tokens; `pad` fills what is left."""
    rows = best_fit([len(piece.tokens) for piece in pieces], row)
    tokens = np.full((len(rows), row), pad, dtype=np.uint32)
    marks = np.zeros((len(rows), row), dtype=np.uint8)
    for number, members in enumerate(rows):
        start = 0
        for member in members:
            piece = pieces[member]
            end = start + len(piece.tokens)
            tokens[number, start:end] = piece.tokens
            marks[number, start + 1 : end] = piece.learn[1:] * LEARN
            marks[number, start] = BEGIN
            start = end
        if start < row:
            marks[number, start] = BEGIN
    return tokens, marks
