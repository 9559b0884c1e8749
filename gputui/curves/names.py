"""Choosing metrics by what a person types: words, globs, or a regular expression."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

EXPRESSION_MARK = "~"
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class NameFilter:
    """The names that match, in the order given. ``problem`` says in words what is wrong with the pattern; all names are
    there then."""

    names: tuple[str, ...]
    problem: str | None = None


def filter_names(names: Sequence[str], pattern: str) -> NameFilter:
    """The names that ``pattern`` means, ignoring case.

    Words apart mean any of them. A word is part of a name; with ``*``, ``?`` or ``[…]`` it is a glob for all of it;
    after ``~`` the rest of the pattern, blanks included, is a regular expression found anywhere in it. ``!`` before a
    word leaves out what it means. Nothing typed means everything.
    """
    text = pattern.strip()
    if not text:
        return NameFilter(tuple(names))
    if text.startswith(EXPRESSION_MARK):
        try:
            search = re.compile(text[len(EXPRESSION_MARK) :], re.IGNORECASE).search
        except (re.error, OverflowError, RecursionError) as error:
            return NameFilter(tuple(names), f"not a regular expression: {error}")
        return NameFilter(tuple(name for name in names if search(name)))
    words = text.split()
    wanted = [_meaning(word) for word in words if not word.startswith("!")]
    unwanted = [_meaning(word[1:]) for word in words if word.startswith("!") and len(word) > 1]
    return NameFilter(
        tuple(
            name
            for name in names
            if (not wanted or any(means(name) for means in wanted)) and not any(means(name) for means in unwanted)
        )
    )


def _meaning(word: str) -> Callable[[str], bool]:
    folded = word.casefold()
    if _GLOB.isdisjoint(folded):
        return lambda name: folded in name.casefold()
    match = re.compile(fnmatch.translate(folded)).match
    return lambda name: match(name.casefold()) is not None
