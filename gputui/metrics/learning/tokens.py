"""A printed line as tokens: words, numbers, and what varies without being a metric (times, rates, bars, paths)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gputui.metrics.learning.words import HELD_OUT, PARTS, Meaning, has_part, meaning, normal_name
from gputui.metrics.values import UNITS, number_in_text

MAX_TOKENS = 256
MAX_COLUMNS = 40
_NAME_WORDS = 5

_REAL = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WHOLE = r"\d[\d,]*"
_SECONDS = (
    r"(?:ns|us|µs|ms|sec|secs|seconds?|minutes?|hours?|hrs?|s)(?:/[A-Za-z]+)?\b|(?:h|m|min|mins|d)(?:/[A-Za-z]+)?\b"
)
_PER = r"(?:s|sec|secs|second|it|iter|step|batch|min|h|hour|sample|epoch)\b"

# What follows the digits at once is their factor.
_UNSIGNED = (
    rf"(?:[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d+)?(?!\d|,\d)|{_REAL}(?!\d|\.\d)|[nN]a[nN]\b|[iI]nf(?:inity)?\b)"
    r"(?:[kKMBGT]\b)?(?:\s?%)?"
)
# A comma before decimals, where it separates no list.
_COMMA = r"\d+,\d+(?!\d|[,.]\d)"
PAIR_SEPARATOR = r"\s*(?:/|\bof\b)\s*"

STAMP = (
    r"\d{4}[-/.]\d\d[-/.]\d\d(?:[T ,_]\s?\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|[-+]\d\d:?\d\d\b)?"
    r"|\d\d?[-/.]\d\d?(?:[-/.]\d{2,4})? \d\d:\d\d(?::\d\d)?(?:[.,]\d+)?"
)
# Times, rates, and sizes in bytes.
_QUANTITY = "|".join((
    STAMP,
    r"(?:\d+ ?d(?:ays?)?,? )?\d+:\d\d(?::\d\d)?(?:[.,]\d+)?(?![\d:])(?:\s[AP]M\b)?",
    r"(?:\d+ ?h ?)?\d+ ?m(?:in)? ?[\d.]+ ?s\b|(?:\d+(?:ms|[Dhms]))+\b",
    rf"[\d.,]+[kKMGT]?\s?(?:[A-Za-z]+/{_PER}|/\s?{_PER})(?:/\w+)?",
    rf"{_REAL}\s?(?:{_SECONDS}|(?:[KMGTk]i?B(?:/s)?|[KMG]b|[Bb]ytes|B)\b)",
))  # fmt: skip
_BLOCKS = "█▉▊▋▌▍▎▏░▒▓━╸╺⣿"

# The patterns of each kind of token, by what it begins with.
_OF_LETTERS = {
    "tensor": rf"(?:[Tt]ensor|[Aa]rray|DeviceArray|(?:np|numpy|jnp|torch)\.\w+|float\d*)\(\s*[-+]?(?:{_REAL}|nan|inf)"
    r"\s*(?:,[^()]*)?\)",
    "word": (
        r"(?!(?i:nan|inf|infinity)\b)(?:(?i:epoch|step|iter|iteration|ep|it|rank|default|gpu|worker)(?=[-:]?\d)"
        r"|(?:[^\W\d]|_)\w*(?:[@.'/+&-](?:[^\W\d]|_)\w*|@\d+|(?<=\d)-\d+\b|-\d(?![\d.,]))*)"
    ),
}
_OF_DIGITS = {
    "percent_bar": r"\d+(?:\.\d+)?%\s?\|[^|]*\|",
    "quantity": _QUANTITY,
    "id": r"\d+\.\d+\.\d+[\w.+:-]*|0x[0-9a-fA-F]+|(?=\d+[a-f])[0-9a-f]{7,}\b",
    "pair": rf"{_WHOLE}{PAIR_SEPARATOR}{_WHOLE}(?!\.?\d|[A-Za-z])",
    "comma": rf"(?<=[ :=|]){_COMMA}",
    "number": _UNSIGNED,
}
_OF_MARKS = {
    "signed_comma": rf"(?<=[ :=|])[-+]{_COMMA}",
    "signed": rf"(?<![\w.)\]])[-+]{_UNSIGNED}",
    "bar": rf"[{_BLOCKS}](?:[{_BLOCKS} ]*[{_BLOCKS}])?|\[[=#>][=#>.\- ]*\]|\[\.{{4,}}\]",
    "unknown_rate": rf"\?\s?\w+/{_PER}|(?<=<)\?",
    # The text of a field, if it is no number. A single word stays: it may name a part of the data.
    "text": r"(?<=[:=\s])\"(?![-+\d.])[^\"]*[^\"\w.-][^\"]*\"(?=\s*[,}\s]|$)|(?<=[:=\s])'[^'\d][^']*[ /][^']*'",
    "path": r"(?<![\w)\]])(?:~|\.{1,2})?/\w[\w./~+=:-]*",
    "hash": r"#(?=[\s\w])",
    "mark": r"\S",
}


def _any_of(patterns: Mapping[str, str]) -> str:
    return "|".join(f"(?P<{name}>{pattern})" for name, pattern in patterns.items())


_TOKEN = re.compile(
    rf"\s*(?:(?=[^\W\d]|_)(?:{_any_of(_OF_LETTERS)})|(?=[\d.nNiI])(?:{_any_of(_OF_DIGITS)})|{_any_of(_OF_MARKS)})"
)
_KINDS = {
    "percent_bar": "bar", "unknown_rate": "quantity", "path": "id", "id_of_letters": "id",
    "hash": "word", "signed": "number", "signed_comma": "comma",
}  # fmt: skip
# The name of a file, or a hash that begins with a letter.
_NO_WORD = (
    r"[\w@.'/+&-]*\.(?:py|pt|pth|ckpt|json|yaml|log|cc|cpp|txt|bin|safetensors|csv|keras|h5|npz|gz|zip|tar|whl|onnx|pkl|"
    r"model|png)\b|(?=[a-f]+\d)[0-9a-f]{7,}\b"
)
_IS_NO_WORD = re.compile(_NO_WORD).fullmatch
PATTERNS = {
    kind: "|".join(
        pattern
        for name, pattern in (_OF_LETTERS | _OF_DIGITS | _OF_MARKS | {"id_of_letters": _NO_WORD}).items()
        if _KINDS.get(name, name) == kind
    )
    for kind in ("quantity", "bar", "id", "text", "tensor")
}
"""The expressions of the tokens that vary without being counted or measured, and of a tensor."""

_MASKED = frozenset({"text", "bar", "quantity", "id"})
_NUMBERS = frozenset({"number", "pair", "tensor", "comma"})
_SEPARATORS = frozenset(":=")
_OPENING = frozenset("[({")
_QUOTES = frozenset("'\"`*")


class Token(NamedTuple):
    """A part of a line. ``gap`` is the white space before it."""

    kind: str
    text: str
    gap: str


class Column(NamedTuple):
    """A number of a line, or two with a total. ``part`` is that of the data which the words before it name."""

    token: int
    name: str
    meaning: Meaning
    is_pair: bool
    is_bar: bool
    part: str | None


class Line(NamedTuple):
    """A line. ``shape`` is what is the same in all lines of its form."""

    text: str
    header: tuple[str, ...]
    tokens: tuple[Token, ...]
    columns: tuple[Column, ...]
    shape: str


def read_line(text: str, header: Sequence[str] = ()) -> Line | None:
    """The tokens and numbers of a line; None if it has too many. ``header`` names the columns of a row of a table."""
    tokens = tokenize(text)
    if len(tokens) > MAX_TOKENS:
        return None
    columns = _table_columns(tokens, header) if header else _columns(tokens)
    if not columns or len(columns) > MAX_COLUMNS:
        return None
    return Line(text, tuple(header), tokens, columns, " ".join([*header, *map(_masked, tokens)]))


def tokenize(text: str) -> tuple[Token, ...]:
    """The tokens of a line, those of a long one up to one more than `MAX_TOKENS`."""
    tokens: list[Token] = []
    end = 0
    for match in islice(_TOKEN.finditer(text), MAX_TOKENS + 1):
        name = match.lastgroup or "mark"
        start = match.start(name)
        kind, part = _KINDS.get(name, name), text[start : match.end()]
        if kind == "word" and _IS_NO_WORD(part):
            kind = "id"
        tokens.append(Token(kind, part, text[end:start]))
        end = match.end()
    return tuple(tokens)


def numbers_of(token: Token) -> tuple[float | int | None, ...]:
    """The number of a token, or the two of a pair."""
    if token.kind == "pair":
        return tuple(read_number(text) for text in re.split(PAIR_SEPARATOR, token.text))
    return (read_number(token.text),)


def read_number(text: str) -> float | int | None:
    """A number as programs print it, with a factor or a percent sign behind it, or a comma before its decimals."""
    text = text.rstrip("% ")
    if "," in text and re.fullmatch(f"[-+]?{_COMMA}", text) and not re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", text):
        text = text.replace(",", ".")
    if text[-1:] in UNITS and text[-2:-1].isdigit():
        number = number_in_text("", text[:-1])
        return None if number is None else number * UNITS[text[-1]]
    return number_in_text("", text)


def leading_cells(tokens: Sequence[Token]) -> int:
    """The cells of a row of a table: its numbers before the first word or mark, but for those between cells."""
    count = 0
    for token in tokens:
        if token.kind in ("word", "bar", "text") or (token.kind == "mark" and token.text not in "|│┃,;+"):
            break
        count += token.kind != "mark"
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
    return not meanings.isdisjoint({Meaning.EPOCH, Meaning.STEP})


def _masked(token: Token) -> str:
    if token.kind in _MASKED:
        return "~"
    if token.kind == "pair":
        return "0/0"
    return "0" if token.kind in _NUMBERS else token.text


def _columns(tokens: Sequence[Token]) -> tuple[Column, ...]:
    parts = [PARTS[token.text.lower()] for token in tokens if token.kind == "word" and token.text.lower() in PARTS]
    is_mixed = "train" in parts and not HELD_OUT.isdisjoint(parts)
    columns: list[Column] = []
    part: str | None = None
    used: set[str] = set()
    for index, token in enumerate(tokens):
        if token.kind == "word":
            part = PARTS.get(token.text.lower(), part)
        if token.kind not in _NUMBERS:
            continue
        printed, is_detail = _words_before(tokens, index)
        name = normal_name(tuple(printed))
        sense = Meaning.IGNORED if is_detail else meaning(name)
        is_real = "." in token.text
        if name in PARTS and is_real:
            sense = Meaning.METRIC
        if sense is Meaning.METRIC and not is_real and token.kind == "number" and _names_more(tokens[index + 1 :]):
            sense = Meaning.IGNORED
        if is_detail and tokens[index - 1].text == "," and columns[-1].meaning in (Meaning.METRIC, Meaning.UNKNOWN):
            columns[-1] = columns[-1]._replace(meaning=Meaning.IGNORED)  # Which of a list is meant is unknown.
        if token.kind == "pair" and not name and _counts_steps(tokens[index + 1 : index + 2]):
            sense = Meaning.STEP
        is_metric = sense in (Meaning.METRIC, Meaning.UNKNOWN)
        if is_metric and name.startswith("train/"):
            is_mixed = True
        if is_metric and name and not has_part(name) and (part in HELD_OUT or (part == "train" and is_mixed)):
            name = f"{part}/{name}"
        if name and name in used and (is_metric or sense is Meaning.SETTING):
            sense = Meaning.IGNORED
        used.add(name)
        is_bar = index > 0 and tokens[index - 1].kind == "bar"
        columns.append(Column(index, name, sense, token.kind == "pair", is_bar, part))
    return tuple(columns)


def _counts_steps(after: Sequence[Token]) -> bool:
    """Return whether a word behind a pair says that it counts steps: ``200/2983 batches``."""
    return any(token.kind == "word" and meaning(token.text.lower()) is Meaning.STEP for token in after)


def _names_more(after: Sequence[Token]) -> bool:
    """Return whether a number is a part of the name of the next: "accuracy of class 7: 0.94"."""
    return bool(after) and after[0].text in _SEPARATORS


def _table_columns(tokens: Sequence[Token], header: Sequence[str]) -> tuple[Column, ...]:
    columns = []
    cells = iter(header)
    for index, token in enumerate(tokens):
        cell = next(cells, None) if token.kind != "mark" else ""
        if token.kind not in _NUMBERS:
            continue
        name = "" if cell is None else normal_name(tuple(cell.split()))
        is_bar = cell is None and tokens[index - 1].kind == "bar"
        columns.append(Column(index, name, meaning(name), token.kind == "pair", is_bar, None))
    return tuple(columns)


def _words_before(tokens: Sequence[Token], index: int) -> tuple[list[str], bool]:
    """The words that name a number, and whether it is a detail of the number before it: an average in brackets, a
    deviation, the next of a list."""
    at = index - 1
    has_separator = False
    while at >= 0 and tokens[at].kind == "mark" and tokens[at].text in _SEPARATORS | _OPENING | _QUOTES:
        has_separator = has_separator or tokens[at].text in _SEPARATORS
        at -= 1
    if at >= 0 and (tokens[at].kind in _NUMBERS or tokens[at].text in ("±", ",", "+/-")) and not has_separator:
        is_inside = at < index - 1 or tokens[at].text == "±"
        is_detail = is_inside and tokens[index - 1].text in _OPENING - {"["} and tokens[at].text != ","
        if tokens[at].text == ",":
            is_detail = at > 0 and tokens[at - 1].kind in _NUMBERS and _is_in_brackets(tokens, at)
        return [], is_detail or tokens[at].text == "±"
    if not has_separator and tokens[index - 1].text in _OPENING - {"["}:
        return [], False
    if at >= 1 and tokens[at].kind == "bar":
        at -= 1
        while at >= 0 and tokens[at].text in _SEPARATORS | {"|"}:
            at -= 1
    words: list[str] = []
    if at >= 3 and tokens[at].text == ")" and tokens[at - 1].kind == "word" and tokens[at - 2].text == "(":
        is_call = tokens[at - 3].kind == "word" and not tokens[at - 2].gap and len(tokens[at - 3].text) == 1
        at -= 3
        if is_call:
            return [f"{tokens[at].text}({tokens[at + 2].text})"], False
    while at >= 0 and tokens[at].kind == "word" and len(words) < _NAME_WORDS:
        words.insert(0, tokens[at].text)
        if len(tokens[at].gap) > 1 or "\t" in tokens[at].gap:
            break
        at -= 1
    return words, False


def _is_in_brackets(tokens: Sequence[Token], at: int) -> bool:
    """Return whether an open bracket with a name before it stands before a comma, as in ``lr=[1, 2]``."""
    while at > 0 and (tokens[at].kind in _NUMBERS or tokens[at].text in ",()"):
        at -= 1
    return tokens[at].text == "[" and at > 0 and (tokens[at - 1].text in _SEPARATORS or tokens[at - 1].kind == "word")
