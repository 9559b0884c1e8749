"""The numbers of a line, with the names that the words around them, or the header of a table, give them.

In: "Epoch 2 [20/100] loss: 0.51 (0.60), val acc 91.2%, 0.3 s/it". Out: an epoch, a place without a name, the metrics
``loss`` and ``val/acc``; 0.60 is a detail of the loss and is left out, and a rate is no number here (see `tokens`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gputui.metrics.learning.tokens import MAX_TOKENS, NUMBERS, Token, tokenize
from gputui.metrics.learning.words import HELD_OUT, PARTS, Sense, has_part, meaning, normal_name

MAX_COLUMNS = 40  # a line with more numbers is a tensor or a list
_NAME_WORDS = 5  # "average validation loss per token"; more words are a sentence
_MASKED = frozenset({"text", "bar", "quantity", "id"})
_SEPARATORS = frozenset(":=")
_OPENING = frozenset("[({")
_QUOTES = frozenset("'\"`*")
# An opening bracket behind which a number is a detail; "[" opens a list or a place.
_DETAIL_BRACKETS = _OPENING - {"["}
_LINKS = frozenset({"±", ",", "+/-"})
_CELL_MARKS = "|│┃,;+"  # between the cells of a row


class PrintedNumber(NamedTuple):
    """A number of a line, or two with a total.

    Attributes:
        token: The index of its token.
        name: In its normal form, "" without one.
        is_pair: It is a number and a total: ``20/100``.
        is_bar: A progress bar is drawn before it.
        part: The part of the data which the words before it name: ``train``, ``val``, ``eval`` or ``test``.
    """

    token: int
    name: str
    meaning: Sense
    is_pair: bool
    is_bar: bool
    part: str | None

    @property
    def may_be_place(self) -> bool:
        """Whether it is a place of a total, and not a share of something that has a name."""
        is_nameless = self.is_bar or not self.name or self.name in PARTS
        return self.is_pair and is_nameless and self.meaning in (Sense.UNKNOWN, Sense.STEP)


class PrintedLine(NamedTuple):
    """A line. ``shape`` is what is the same in all lines of its form."""

    text: str
    header: tuple[str, ...]
    tokens: tuple[Token, ...]
    columns: tuple[PrintedNumber, ...]
    shape: str


def read_line(text: str, header: Sequence[str] = ()) -> PrintedLine | None:
    """The tokens and numbers of a line; None if it has too many. ``header`` names the columns of a row of a table."""
    tokens = tokenize(text)
    if len(tokens) > MAX_TOKENS:
        return None
    columns = _table_columns(tokens, header) if header else _columns(tokens)
    if not columns or len(columns) > MAX_COLUMNS:
        return None
    return PrintedLine(text, tuple(header), tokens, columns, " ".join([*header, *map(_masked, tokens)]))


def leading_cells(tokens: Sequence[Token]) -> int:
    """The cells of a row of a table: its numbers before the first word or mark, but for those between cells."""
    count = 0
    for token in tokens:
        is_between_cells = token.kind == "mark" and token.text in _CELL_MARKS
        if is_between_cells:
            continue
        if token.kind in ("word", "bar", "text", "mark"):
            break
        count += 1
    return count


def header_cells(text: str) -> tuple[tuple[str, ...], ...]:
    """The readings of a line of words as names of columns, by wide gaps and by all gaps; none for other lines, and
    where no name is that of a counter."""
    if any(token.kind not in ("word", "mark") for token in tokenize(text)):
        return ()
    inner = text.strip().strip("|│┃ ")
    wide = [cell.strip() for cell in re.split(r"\s*[|│┃,;]\s*|\t+|\s{2,}", inner)]
    narrow = [cell for cell in re.split(r"[\s|│┃,;]+", inner) if cell]
    readings = {tuple(wide), tuple(narrow)}
    return tuple(cells for cells in sorted(readings, key=len) if all(cells) and _has_counter(cells))


def _has_counter(cells: Sequence[str]) -> bool:
    meanings = {meaning(cell.lower()) for cell in cells}
    return not meanings.isdisjoint({Sense.EPOCH, Sense.STEP})


def _masked(token: Token) -> str:
    if token.kind in _MASKED:
        return "~"
    if token.kind == "pair":
        return "0/0"
    if token.kind in NUMBERS:
        return "0"
    return token.text


def _columns(tokens: Sequence[Token]) -> tuple[PrintedNumber, ...]:
    columns: list[PrintedNumber] = []
    is_mixed = _names_both_parts(tokens)
    part: str | None = None
    used: set[str] = set()
    for index, token in enumerate(tokens):
        if token.kind == "word":
            part = PARTS.get(token.text.lower(), part)
        if token.kind not in NUMBERS:
            continue
        name_words, is_detail = _name_before(tokens, index)
        own_name = normal_name(tuple(name_words))
        sense = _sense(tokens, index, own_name, is_detail=is_detail)
        is_in_list = is_detail and tokens[index - 1].text == ","
        if is_in_list and columns[-1].meaning in (Sense.METRIC, Sense.UNKNOWN):
            # Which number of a list is meant is unknown.
            columns[-1] = columns[-1]._replace(meaning=Sense.IGNORED)
        name = own_name
        if sense in (Sense.METRIC, Sense.UNKNOWN):
            is_mixed = is_mixed or own_name.startswith("train/")
            name = _with_part(own_name, part, is_mixed=is_mixed)
        is_repeated = name != "" and name in used
        if is_repeated and sense in (Sense.METRIC, Sense.UNKNOWN, Sense.SETTING):
            sense = Sense.IGNORED
        used.add(name)
        is_bar = index > 0 and tokens[index - 1].kind == "bar"
        columns.append(PrintedNumber(index, name, sense, is_pair=token.kind == "pair", is_bar=is_bar, part=part))
    return tuple(columns)


def _names_both_parts(tokens: Sequence[Token]) -> bool:
    """Return whether a line is of the training and of other data: "train loss 0.5, val loss 0.6"."""
    parts = {PARTS.get(token.text.lower()) for token in tokens if token.kind == "word"}
    return "train" in parts and not HELD_OUT.isdisjoint(parts)


def _sense(tokens: Sequence[Token], index: int, name: str, *, is_detail: bool) -> Sense:
    """What a number is, by its name and by what stands behind it."""
    token = tokens[index]
    behind = tokens[index + 1 : index + 2]
    is_nameless_pair = token.kind == "pair" and not name
    if is_nameless_pair and _counts_steps(behind):
        return Sense.STEP
    if is_detail:
        return Sense.IGNORED
    is_real = "." in token.text.removesuffix(".")
    if is_real and name in PARTS:
        return Sense.METRIC
    sense = meaning(name)
    is_whole_number = token.kind == "number" and not is_real
    if sense is Sense.METRIC and is_whole_number and _names_more(behind):
        return Sense.IGNORED
    return sense


def _with_part(name: str, part: str | None, *, is_mixed: bool) -> str:
    """A metric's name with the part of the data that the words before it name: ``test/loss`` of "Test set: loss"."""
    if not name or part is None or has_part(name):
        return name
    if part in HELD_OUT or (part == "train" and is_mixed):
        return f"{part}/{name}"
    return name


def _counts_steps(after: Sequence[Token]) -> bool:
    """Return whether a word behind a pair says that it counts steps: ``200/2983 batches``."""
    return any(token.kind == "word" and meaning(token.text.lower()) is Sense.STEP for token in after)


def _names_more(after: Sequence[Token]) -> bool:
    """Return whether a number is a part of the name of the next: "accuracy of class 7: 0.94"."""
    return any(token.text in _SEPARATORS for token in after)


def _table_columns(tokens: Sequence[Token], header: Sequence[str]) -> tuple[PrintedNumber, ...]:
    columns = []
    cells = iter(header)
    for index, token in enumerate(tokens):
        cell = next(cells, None) if token.kind != "mark" else ""
        if token.kind not in NUMBERS:
            continue
        name = normal_name(tuple((cell or "").split()))
        is_bar = cell is None and tokens[index - 1].kind == "bar"
        columns.append(
            PrintedNumber(index, name, meaning(name), is_pair=token.kind == "pair", is_bar=is_bar, part=None)
        )
    return tuple(columns)


def _name_before(tokens: Sequence[Token], index: int) -> tuple[list[str], bool]:
    """The words that name a number, and whether it is a detail of the number before it: an average in brackets, a
    deviation, the next of a list.

    In "val loss: 0.51 (0.60)" they are ``val loss`` for 0.51, and none for 0.60, a detail.
    """
    at = _before_marks(tokens, index - 1)
    if at < 0:
        return [], False
    has_separator = any(mark.text in _SEPARATORS for mark in tokens[at + 1 : index])
    follows_number = tokens[at].kind in NUMBERS or tokens[at].text in _LINKS
    if follows_number and not has_separator:
        return [], _is_detail(tokens, at, index)
    is_in_brackets = tokens[index - 1].text in _DETAIL_BRACKETS
    if is_in_brackets and not has_separator:
        return [], False
    return _words_up_to(tokens, _before_bar(tokens, at)), False


def _before_marks(tokens: Sequence[Token], at: int) -> int:
    """The index of the last token up to ``at`` that is no separator, opening bracket or quote; -1 if there is none."""
    while at >= 0 and tokens[at].kind == "mark" and tokens[at].text in _SEPARATORS | _OPENING | _QUOTES:
        at -= 1
    return at


def _before_bar(tokens: Sequence[Token], at: int) -> int:
    """The index of the last token before the progress bar at ``at`` and its marks; ``at`` itself if it is no bar."""
    if at < 1 or tokens[at].kind != "bar":
        return at
    at -= 1
    while at >= 0 and tokens[at].text in _SEPARATORS | {"|"}:
        at -= 1
    return at


def _is_detail(tokens: Sequence[Token], at: int, index: int) -> bool:
    """Return whether a number is a detail of the one before it: "0.51 (0.60)", "0.51 ± 0.02", "[0.51, 0.60]". ``at`` is
    that number, or the mark between the two."""
    if tokens[at].text == "±":
        return True
    if tokens[at].text == ",":
        return at > 0 and tokens[at - 1].kind in NUMBERS and _is_in_brackets(tokens, at)
    return at < index - 1 and tokens[index - 1].text in _DETAIL_BRACKETS


def _words_up_to(tokens: Sequence[Token], at: int) -> list[str]:
    """The words of the name that ends at a token: "val loss", "D(x)", or "iter time" of "iter time (s)"."""
    if not _ends_in_brackets(tokens, at):
        return _words_of_cell(tokens, at)
    name, bracket, argument, _ = tokens[at - 3 : at + 1]
    is_function = name.kind == "word" and len(name.text) == 1 and not bracket.gap
    if is_function:
        return [f"{name.text}({argument.text})"]
    return _words_of_cell(tokens, at - 3)


def _ends_in_brackets(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a word in brackets ends at a token, and something stands before it."""
    if at < 3:
        return False
    bracket, argument, end = tokens[at - 2 : at + 1]
    return bracket.text == "(" and argument.kind == "word" and end.text == ")"


def _words_of_cell(tokens: Sequence[Token], at: int) -> list[str]:
    """The last words up to a token, of one cell: a tab or several blanks stand between cells."""
    name_words: list[str] = []
    while at >= 0 and tokens[at].kind == "word" and len(name_words) < _NAME_WORDS:
        name_words.insert(0, tokens[at].text)
        if len(tokens[at].gap) > 1 or "\t" in tokens[at].gap:
            break
        at -= 1
    return name_words


def _is_in_brackets(tokens: Sequence[Token], at: int) -> bool:
    """Return whether an open bracket with a name before it stands before a comma, as in ``lr=[1, 2]``."""
    while at > 0 and (tokens[at].kind in NUMBERS or tokens[at].text in ",()"):
        at -= 1
    if at == 0 or tokens[at].text != "[":
        return False
    before = tokens[at - 1]
    return before.kind == "word" or before.text in _SEPARATORS
