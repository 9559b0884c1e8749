"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` closest to ``name``, or None. Case, dashes and underscores are ignored."""
    plain = {_plain(candidate): candidate for candidate in names}
    found = difflib.get_close_matches(_plain(name)[:100], plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ "did you mean …?" with the nearest name; "" if none is close."""
    meant = nearest(name, names)
    return f"did you mean {meant}?" if meant is not None else ""


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """As `nearest`, for files. A common suffix alone does not make names similar."""
    listed = list(names)
    stem = PurePath(name).stem
    same = {PurePath(each).stem: each for each in reversed(listed) if PurePath(each).suffix == PurePath(name).suffix}
    others = {each: each for each in listed if each not in same.values()}
    found = nearest(stem, same)
    return same[found] if found is not None else nearest(name, others)


def not_one_of(
    what: str, name: str, known: Iterable[str], other_names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str | None]:
    """The message for an unknown name, and the nearest known one. ``other_names`` maps names of other tools to names
    here."""
    names = list(known)
    meant = other_names.get(_plain(name)) or nearest(name, names)
    return f"unknown {what}" + ("" if meant else f"; there are {', '.join(names)}"), meant


def one_of(names: Iterable[object]) -> str:
    """``a, b or c``."""
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
