"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` closest to ``name``, or None when none is close. Case, dashes and underscores do not
    count."""
    plain = {_plain(candidate): candidate for candidate in names}
    found = difflib.get_close_matches(_plain(name)[:100], plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """As `nearest`, for files: an ending that both have makes no two names alike."""
    listed = list(names)
    stem = PurePath(name).stem
    same = {PurePath(each).stem: each for each in reversed(listed) if PurePath(each).suffix == PurePath(name).suffix}
    others = {each: each for each in listed if each not in same.values()}
    found = nearest(stem, same)
    return same[found] if found is not None else nearest(name, others)


def not_one_of(
    what: str, name: str, known: Iterable[str], other_names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str | None]:
    """What is wrong with a name that is none of those there are, and the one that was probably meant. ``other_names``
    are what other tools call some of them, with the name here."""
    names = list(known)
    meant = other_names.get(_plain(name)) or nearest(name, names)
    return f"unknown {what}" + ("" if meant else f"; there are {', '.join(names)}"), meant


def one_of(names: Iterable[object]) -> str:
    """``a, b or c``."""
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
