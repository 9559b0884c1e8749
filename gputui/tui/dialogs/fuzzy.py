"""Finding names by parts of them: words in any order, letters left out, beginnings first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")

_PREFIX, _WORD, _INSIDE, _BESIDE, _LETTERS = range(5)


def cost(typed: str, title: str, beside: str = "") -> int | None:
    """How badly ``typed`` fits a title, 0 best; None when it does not. Every word typed must be found: as the
    beginning of the title, of a word in it, inside, in what stands ``beside`` it, or by its letters in their order."""
    name, other = title.lower(), beside.lower()
    total = 0
    for word in typed.lower().split():
        place = name.find(word)
        if place == 0:
            total += _PREFIX
        elif place > 0:
            starts = not name[place - 1].isalnum() or f" {word}" in name
            total += _WORD if starts else _INSIDE
        elif word in other:
            total += _BESIDE
        else:
            gaps = _gaps(word, name)
            if gaps is None:
                return None
            total += _LETTERS + gaps
    return total


def ranked(things: Sequence[Thing], typed: str, words: Callable[[Thing], tuple[str, str, bool]]) -> list[Thing]:
    """The things that fit, the best first, and among equals in their order. ``words`` gives a thing's title, what
    stands beside it, and whether it is possible now: what is not comes after its equals."""
    if not typed.strip():
        return sorted(things, key=lambda thing: not words(thing)[2])
    found = []
    for place, thing in enumerate(things):
        title, beside, possible = words(thing)
        price = cost(typed, title, beside)
        if price is not None:
            found.append((price, not possible, place, thing))
    found.sort(key=lambda each: each[:3])
    return [each[3] for each in found]


def _gaps(letters: str, text: str) -> int | None:
    """Interruptions between the letters where they come in order, beginning wherever they fit first."""
    place, gaps = -1, 0
    for letter in letters:
        following = text.find(letter, place + 1)
        if following < 0:
            return None
        gaps += place >= 0 and following != place + 1
        place = following
    return gaps
