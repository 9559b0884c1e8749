"""Many samples of one source in one row: how a column of whole numbers becomes text, and text numbers again. Pure.

The format is a stable interface, described in docs/schema.md; the views of the samples read it in plain SQL.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

MOST_SAMPLES = 128
"""In one pack."""

BLOCK_SECONDS = 600
"""A pack lies within one such span since 1970, so that whole packs are deleted for their age."""

UNKNOWN = " "
_FIRST = 33
_DIGIT = 32767
_MOST_CODE = _DIGIT * _DIGIT - 1


class Column(NamedTuple):
    """One column of a pack, as it is stored: value n is ``base + scale * code``."""

    base: int | None
    scale: int | None
    codes: str | None


class Times(NamedTuple):
    """When the samples of a pack were taken, in milliseconds: a column, and ``step * n`` to be added to value n."""

    step: int
    base: int
    scale: int
    codes: str


def encode(values: Sequence[int | None]) -> Column:
    """Exact, unless the values span more than 2³⁰ times the least step between them: then to a 2³⁰th of that span.

    Raises OverflowError for values that a database's 64 bits cannot hold this way."""
    known = [value for value in values if value is not None]
    if not known:
        return Column(None, None, None)
    least, greatest = min(known), max(known)
    span = greatest - least
    if not span and len(known) == len(values):
        return _storable(least, 0, chr(_FIRST), greatest)
    scale = math.gcd(*(value - least for value in known)) or 1
    if span // scale > _MOST_CODE:
        scale = -(-span // _MOST_CODE)
        codes = [None if value is None else round((value - least) / scale) for value in values]
    else:
        codes = [None if value is None else (value - least) // scale for value in values]
    low = _text([ord(UNKNOWN) if code is None else code % _DIGIT + _FIRST for code in codes])
    if span // scale < _DIGIT:
        return _storable(least - scale * _FIRST, scale, low, greatest)
    high = _text([(code or 0) // _DIGIT + _FIRST for code in codes])
    return _storable(least - scale * (_FIRST + _DIGIT * _FIRST), scale, low + high, greatest)


def _storable(base: int, scale: int, codes: str, greatest: int) -> Column:
    # What SQL multiplies and adds when it reads a value fits as well; a rounded one may be greater by half a step.
    if not all(-(2**63) <= number < 2**63 for number in (base, greatest + scale, greatest + scale - base)):
        raise OverflowError("values too large for a pack")
    return Column(base, scale, codes)


def decode(column: Column, count: int, begin: int, end: int) -> list[int | None]:
    """The values from number ``begin`` up to before ``end``, of the ``count`` in a pack."""
    base, scale, codes = column
    if base is None or scale is None or codes is None:
        return [None] * (end - begin)
    if len(codes) == 1:
        return [base + scale * ord(codes)] * (end - begin)
    low = codes[begin:end]
    found: list[int | None]
    if len(codes) > count:
        pairs = zip(_numbers(low), _numbers(codes[count + begin : count + end]), strict=True)
        found = [base + scale * (low_digit + _DIGIT * high_digit) for low_digit, high_digit in pairs]
    else:
        found = [base + scale * digit for digit in _numbers(low)]
    if UNKNOWN in low:
        found = [None if character == UNKNOWN else value for character, value in zip(low, found, strict=True)]
    return found


def sums(column: Column, count: int, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(sum, how many are known) of the values from number ``begin`` up to before ``end``, for each such pair."""
    base, scale, codes = column
    if base is None or scale is None or codes is None:
        return [(0, 0) for _ in parts]
    if len(codes) == 1:
        value = base + scale * ord(codes)
        return [(value * (end - begin), end - begin) for begin, end in parts]
    if UNKNOWN in codes:
        known = [[value for value in decode(column, count, *part) if value is not None] for part in parts]
        return [(sum(values), len(values)) for values in known]
    running = [0, *accumulate(_numbers(codes[:count]))]
    if len(codes) > count:
        higher = [0, *accumulate(_numbers(codes[count:]))]
        running = [low + _DIGIT * high for low, high in zip(running, higher, strict=True)]
    return [(base * (end - begin) + scale * (running[end] - running[begin]), end - begin) for begin, end in parts]


class Told(NamedTuple):
    """What some values of a column say: how many are known, and of those the least, the most and the sum."""

    known: int
    low: int
    high: int
    total: int


def told(column: Column, count: int, parts: Sequence[tuple[int, int]]) -> list[Told | None]:
    """The values from number ``begin`` up to before ``end``, for each such pair; None where all are unknown."""
    base, scale, codes = column
    if base is None or scale is None or codes is None:
        return [None for _ in parts]
    if len(codes) == 1:
        value = base + scale * ord(codes)
        return [Told(end - begin, value, value, value * (end - begin)) for begin, end in parts]
    if UNKNOWN in codes or len(codes) > count:
        values = decode(column, count, 0, count)
        known = [[value for value in values[begin:end] if value is not None] for begin, end in parts]
        return [Told(len(some), min(some), max(some), sum(some)) if some else None for some in known]
    numbers = _numbers(codes)
    found: list[Told | None] = []
    for begin, end in parts:
        cut = numbers[begin:end]
        size = end - begin
        found.append(Told(size, base + scale * min(cut), base + scale * max(cut), base * size + scale * sum(cut)))
    return found


def encode_times(milliseconds: Sequence[int]) -> Times:
    """Of at least one time."""
    steps = len(milliseconds) - 1
    step = (milliseconds[-1] - milliseconds[0]) // steps if steps else 0
    base, scale, codes = encode([at - step * number for number, at in enumerate(milliseconds)])
    assert base is not None and scale is not None and codes is not None
    return Times(step, base, scale, codes)


def decode_times(times: Times, count: int, begin: int, end: int) -> list[int]:
    step = times.step
    found = decode(Column(*times[1:]), count, begin, end)
    return [at + step * number for number, at in enumerate(found, begin) if at is not None]


def time_at(times: Times, count: int, number: int) -> int:
    """One of the times, without looking at the others."""
    step, base, scale, codes = times
    code = ord(codes[number % len(codes)])
    if len(codes) > count:
        code += _DIGIT * ord(codes[count + number])
    return base + step * number + scale * code


def _text(points: list[int]) -> str:
    return array("I", points).tobytes().decode(_NATIVE)


def _numbers(text: str) -> array[int]:
    return array("I", text.encode(_NATIVE))


_NATIVE = "utf-32-le" if array("I", [1]).tobytes()[0] else "utf-32-be"
