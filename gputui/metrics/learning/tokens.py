"""A printed line as tokens: words, numbers, and what varies without being a metric (times, rates, bars, paths).

In: "Epoch 2 [20/100] loss: 0.51, 12.3ms, out/a.pt". Out: the words ``Epoch`` and ``loss``, the numbers ``2`` and
``0.51``, the pair ``20/100``, the quantity ``12.3ms``, the id ``out/a.pt``, and each other character as a mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from gputui.core.training_log import MAX_STEP
from gputui.metrics.values import UNITS, number_in_text

MAX_TOKENS = 256  # a longer line is data, and would take a millisecond
# Numbers so short are read without a look for units and the like, if they end in a digit.
_PLAIN_CHARACTERS = 16

# No digit is given back, nor a part of a text: a long run of them is read once.
_REAL = r"(?:\d++\.?\d*+|\.\d+)(?:[eE][-+]?\d+)?"
# Thousands apart, unless the comma separates it from the next number: "1/5,500/2000".
_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})++(?!,?\d|\.\d|\s*/\s*\d)|\d++)"
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
# "1,234" has its thousands apart.
_DECIMAL_COMMA = re.compile(rf"[-+]?(?![1-9]\d{{0,2}},\d{{3}}$){_COMMA}")
PAIR_SEPARATOR = r"\s*(?:/|\bof\b)\s*"

# A date and time: "2026-11-28 10:00:01,123", "2026/11/28", "28.11.2026 10:00".
STAMP = (
    r"\d{4}[-/.]\d\d[-/.]\d\d(?:[T ,_]\s?\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|[-+]\d\d:?\d\d\b)?"
    r"|\d\d?[-/.]\d\d?(?:[-/.]\d{2,4})? \d\d:\d\d(?::\d\d)?(?:[.,]\d+)?"
)
_COUNT = r"[\d.,]++(?<=[\d.])[kKMGT]?"
_QUANTITY = "|".join((
    STAMP,
    # Times: "10:00:01", "1 day, 2:03", then "2h 3m 4s", "1m3s".
    r"(?:\d+ ?d(?:ays?)?,? )?\d+:\d\d(?::\d\d)?(?:[.,]\d+)?(?![\d:])(?:\s[AP]M\b)?",
    r"(?:\d+ ?h ?)?\d+ ?m(?:in)? ?[\d.]+ ?s\b|(?:\d+(?:ms|[Dhms]))+\b",
    # Rates: "7.1it/s", "612/s", "944 tok/s/GPU".
    rf"{_COUNT}(?:[A-Za-z]+/{_PER}|/\s?{_PER})(?:/\w+)?",
    # Behind a blank it may be the name of the number that follows.
    rf"{_COUNT}\s(?:[A-Za-z]+/{_PER}|/\s?{_PER})(?:/\w+)?(?!\s*[:=]|\s+[-+]?\.?\d)",
    # "12.3ms", "12.1GiB".
    rf"{_REAL}\s?(?:{_SECONDS}|(?:[KMGTk]i?B(?:/s)?|[KMG]b|[Bb]ytes|B)\b)",
))  # fmt: skip
_BLOCKS = "█▉▊▋▌▍▎▏░▒▓━╸╺⣿"

# The patterns of each kind of token, by what it begins with.
_OF_LETTERS = {
    # tensor(0.51, device='cuda:0')
    "tensor": rf"(?:[Tt]ensor|[Aa]rray|DeviceArray|(?:np|numpy|jnp|torch)\.\w+|float\d*)\(\s*[-+]?(?:{_REAL}|nan|inf)"
    r"\s*(?:,[^()]*)?\)",
    # Acc@1, valid_0's, train/loss; "epoch3" is a word and a number.
    "word": (
        r"(?!(?i:nan|inf|infinity)\b)(?:(?i:epoch|step|iter|iteration|ep|it|rank|default|gpu|worker)(?=[-:]?\d)"
        r"|(?:[^\W\d]|_)\w*(?:[@.'/+&-](?:[^\W\d]|_)\w*|@\d+|(?<=\d)-\d+\b|-\d(?![\d.,]))*)"
    ),
}
_OF_DIGITS = {
    # 45%|████▌     |
    "percent_bar": r"\d+(?:\.\d+)?%\s?\|[^|]*\|",
    # What begins no quantity is told apart at once.
    "quantity": rf"(?=[\d.,]++\s?[A-Za-zµ\d:/-])(?:{_QUANTITY})",
    # Versions, addresses and hashes: 2.13.0, 10.0.0.7:29500, 0x7f2c, 3fa85f6
    "id": r"\d+\.\d+\.\d+[\w.+:-]*|0x[0-9a-fA-F]+|(?=\d+[a-f])[0-9a-f]{7,}\b",
    # 20/100, 3 of 10
    "pair": rf"{_WHOLE}{PAIR_SEPARATOR}{_WHOLE}(?!\.?\d|[A-Za-z])",
    # 0,51
    "comma": rf"(?<=[ :=|]){_COMMA}",
    "number": _UNSIGNED,
}
_OF_MARKS = {
    "signed_comma": rf"(?<=[ :=|])[-+]{_COMMA}",
    "signed": rf"(?<![\w.)\]])[-+]{_UNSIGNED}",
    # ━━━━━╸, [====>....]
    "bar": rf"[{_BLOCKS}](?:[{_BLOCKS} ]*[{_BLOCKS}])?|\[[=#>][=#>.\- ]*\]|\[\.{{4,}}\]",
    # tqdm's first line: [00:00<?, ?it/s]
    "unknown_rate": rf"\?\s?\w+/{_PER}|(?<=<)\?",
    # The text of a field, if it is no number. A single word stays: it may name a part of the data.
    "text": r"(?<=[:=\s])\"(?![-+\d.])[\w.-]*+[^\"\w.-][^\"]*+\"(?=\s*[,}\s]|$)|(?<=[:=\s])'[^'\d][^' /]*+[ /][^']*+'",
    # /tmp/x, ./out, ~/a
    "path": r"(?<![\w)\]])(?:~|\.{1,2})?/\w[\w./~+=:-]*",
    # The name of a column: "#  loss"
    "hash": r"#(?=[\s\w])",
    "mark": r"\S",
}

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

NUMBERS = frozenset({"number", "pair", "tensor", "comma"})


def _any_of(patterns: Mapping[str, str]) -> str:
    return "|".join(f"(?P<{name}>{pattern})" for name, pattern in patterns.items())


_TOKEN = re.compile(
    rf"\s*(?:(?=[^\W\d]|_)(?:{_any_of(_OF_LETTERS)})|(?=[\d.nNiI])(?:{_any_of(_OF_DIGITS)})|{_any_of(_OF_MARKS)})"
)


class Token(NamedTuple):
    """A part of a line. ``gap`` is the white space before it."""

    kind: str
    text: str
    gap: str


def tokenize(text: str) -> tuple[Token, ...]:
    """The tokens of a line, those of a long one up to one more than `MAX_TOKENS`."""
    tokens: list[Token] = []
    end = 0
    for match in islice(_TOKEN.finditer(text.rstrip()), MAX_TOKENS + 1):
        pattern = match.lastgroup or "mark"
        start = match.start(pattern)
        printed = text[start : match.end()]
        kind = _KINDS.get(pattern, pattern)
        if kind == "word" and not printed.isalpha() and _IS_NO_WORD(printed):
            kind = "id"
        tokens.append(Token(kind, printed, text[end:start]))
        end = match.end()
    return tuple(tokens)


def numbers_of(token: Token) -> tuple[float | int | None, ...]:
    """The number of a token, or the two of a pair."""
    if token.kind == "pair":
        return tuple(read_number(text) for text in re.split(PAIR_SEPARATOR, token.text))
    return (read_number(token.text),)


def whole(text: str) -> int | None:
    """A whole number that may be a step, with its thousands apart or not; a sentence may end behind it."""
    try:
        number = int(text.replace(",", "").removesuffix("."))
    except ValueError:
        return None
    if number <= MAX_STEP:
        return number
    return None


def read_number(text: str) -> float | int | None:
    """A number as programs print it: ``0.51``, ``1,234``, ``0,51``, ``1.2k``, ``91.2%``, ``tensor(0.51)``."""
    is_plain = text[-1:].isdecimal() and "," not in text and len(text) <= _PLAIN_CHARACTERS
    if is_plain and text.isdecimal():
        return int(text)
    if is_plain:
        with suppress(ValueError):
            return float(text)
    text = text.rstrip("% ").removesuffix(".")
    if _DECIMAL_COMMA.fullmatch(text) is not None:
        text = text.replace(",", ".")
    factor = 1.0
    if text[-1:] in UNITS and text[-2:-1].isdigit():
        text, factor = text[:-1], UNITS[text[-1]]
    number = number_in_text("", text)
    if number is None or factor == 1:
        return number
    return number * factor
