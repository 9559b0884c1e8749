"""A learned shape: one regular expression for its lines, and what its numbers are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from gputui.metrics.learning.tokens import PAIR_SEPARATOR, PATTERNS, Token, read_number, tokenize, whole

Role = Literal["step", "step_total", "epoch", "epoch_total", "rank", "value", "value_total", "epoch_value"]

# Each piece of an expression takes all it can and gives nothing back: lists of numbers would be tried in all divisions.
_OR_COMMA = r"|,(?=\d)"
_WHOLE = rf"\d(?:\d{_OR_COMMA})*+"
_NUMBER = (
    rf"[-+]?(?:\d(?:\d|\.(?=\d){_OR_COMMA})*+\.?(?:[eE][-+]?\d++)?|\.\d++(?:[eE][-+]?\d++)?|[nN]a[nN]|[iI]nf(?:inity)?)"
    r"[kKMBGT]?(?:\s?%)?"
)
_NUMBER_LIKE = frozenset({"number", "comma", "tensor", "pair", "quantity", "id"})


class LearnedColumn(Struct, frozen=True):
    """A number of a shape, that of a token of its example. ``epoch_value`` is a fraction of epochs; ``value_total``
    the number that the value before it is divided by."""

    token: int
    role: Role
    name: str = ""


class LearnedShape(Struct, frozen=True):
    """Lines of the form of ``example``.

    Attributes:
        columns: What its numbers are, in the order in which they are printed.
        is_held_out: The counters are those of a validation, of which the last line counts.
        restarts: The counter begins again though the lines name no epoch.
        may_nest: The counter has no name, so that one with a smaller total may be a validation's.
        stride: What its places have in common, as `ShapeEvidence.stride`.
        counts_samples: The counter counts samples.
        is_apart: The lines name an epoch alone, and come while no step is made.
        part: The part of the data which its lines name.
    """

    example: str
    columns: tuple[LearnedColumn, ...]
    is_held_out: bool = False
    restarts: bool = False
    may_nest: bool = False
    stride: int = 0
    counts_samples: bool = False
    is_apart: bool = False
    part: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its metrics."""
        return tuple(column.name for column in self.columns if column.role in ("value", "epoch_value"))

    @property
    def is_source(self) -> bool:
        """Whether its lines only count, so that they give lines without a step theirs."""
        return not any(column.role == "value" for column in self.columns)

    @property
    def scale(self) -> str:
        """The shapes whose places are counted on together: by epochs of the lines, with totals or without, or by places
        that begin again."""
        if self.restarts:
            return "restarts"
        if self.has("step_total"):
            return "totals"
        return "places"

    @property
    def lacks_step(self) -> bool:
        """Whether its metrics have the step of other lines."""
        return not (self.is_source or self.has("step") or self.has("epoch"))

    @property
    def lacks_epoch(self) -> bool:
        """Whether a header may name the epoch of its lines: they name none."""
        return not (self.is_source or self.is_held_out or self.has("epoch"))

    def has(self, role: Role) -> bool:
        """Return whether one of its numbers is this."""
        return any(column.role == role for column in self.columns)


class Counters(NamedTuple):
    """What a line counts; None what it does not name."""

    step: int | None
    step_total: int | None
    epoch: int | None
    epoch_total: int | None
    rank: int | None

    def in_batches(self, batch: int) -> Counters:
        """The counters with a place in batches of so many samples, of one that counts samples."""
        if self.step is None or self.step_total is None:
            return self
        return self._replace(step=-(-self.step // batch), step_total=-(-self.step_total // batch))


class ShapeReader:
    """Reads the lines of a shape."""

    def __init__(self, shape: LearnedShape) -> None:
        self.shape = shape
        self.is_source = shape.is_source
        self.match = re.compile(_expression(shape)).fullmatch
        self._counters = {column.role: index for index, column in enumerate(shape.columns, 1) if column.name == ""}
        self._values = [
            (index, column.name, index < len(shape.columns) and shape.columns[index].role == "value_total")
            for index, column in enumerate(shape.columns, 1)
            if column.role in ("value", "epoch_value")
        ]

    def counters(self, match: re.Match[str]) -> Counters | None:
        """The counters of a line; None if one of them is no whole number."""
        numbers: list[int | None] = []
        for role in ("step", "step_total", "epoch", "epoch_total", "rank"):
            number = None
            if (index := self._counters.get(role)) is not None and (number := whole(match[index])) is None:
                return None
            numbers.append(number)
        return Counters(*numbers)

    def values(self, match: re.Match[str]) -> dict[str, int | float]:
        """The metrics of a line."""
        values = {}
        for index, name, is_share in self._values:
            number = read_number(match[index])
            if number is None:
                continue
            if not is_share:
                values[name] = number
            elif total := read_number(match[index + 1]):
                values[name] = number / total
        return values

    def last_end(self, match: re.Match[str]) -> int:
        """The end of the last number of a line that counts."""
        return match.end(len(self.shape.columns))


def _expression(shape: LearnedShape) -> str:
    """The expression that matches the lines of a shape, with a group for each of its columns, in their order."""
    pieces: list[str] = []
    before: Token | None = None
    tokens = tokenize(shape.example)
    for index, token in enumerate(tokens):
        gap = r"\s*+" if before is None else _gap(before, token)
        pieces.append(gap)
        piece = _piece(token, [column for column in shape.columns if column.token == index])
        if _is_in_list(tokens, index):
            piece = piece.replace(_OR_COMMA, "")
        pieces.append(piece)
        before = token
    return "".join(pieces) + r"\s*+"


def _is_in_list(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a comma and a number follow a number: a comma is none of its own."""
    token = tokens[index]
    behind = tokens[index + 1 : index + 3]
    if token.kind not in ("number", "pair") or "," in token.text or len(behind) < 2:
        return False
    return behind[0].text == "," and behind[1].kind in _NUMBER_LIKE


def _gap(before: Token, token: Token) -> str:
    is_between_numbers = before.kind in _NUMBER_LIKE and token.kind in _NUMBER_LIKE
    is_between_words = before.kind == token.kind == "word" and token.gap
    if (is_between_numbers and token.gap) or is_between_words:
        return r"\s++"
    return r"\s*+"


def _piece(token: Token, columns: Sequence[LearnedColumn]) -> str:
    if token.kind in ("word", "mark"):
        return re.escape(token.text)
    if token.kind == "pair":
        # A pair with one column is a number out of a total that nobody asks for, as of ranks.
        first = f"({_WHOLE})" if columns else _WHOLE
        second = f"({_WHOLE})" if len(columns) > 1 else _WHOLE
        return first + PAIR_SEPARATOR + second
    if token.kind == "tensor":
        if columns:
            return f"((?>{PATTERNS['tensor']}))"
        return f"(?>{PATTERNS['tensor']})"
    if token.kind not in ("number", "comma"):
        return f"(?>{PATTERNS[token.kind]})"
    if columns and columns[0].role not in ("value", "epoch_value"):
        # A sentence may end behind it.
        return rf"({_WHOLE})(?:\.(?!\d))?+"
    if columns:
        return f"({_NUMBER})"
    return f"(?:{_NUMBER})"
