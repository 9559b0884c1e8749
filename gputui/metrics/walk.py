"""Search for the files that match a pattern, with a bounded number of entries looked at.

The patterns are those of `glob`: ``*``, ``?`` and ``[…]`` within a name, ``**`` for any folders. A ``**`` follows no
links to folders, so that links which form a circle do not make the search endless.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

MOST_ENTRIES = 50_000
"""A search looks at most at this many entries of folders."""


class FoundPaths(NamedTuple):
    """The result of a search. ``is_cut``: there was more to look at than MOST_ENTRIES."""

    paths: list[str]
    is_cut: bool


def find(pattern: str, most_entries: int = MOST_ENTRIES) -> FoundPaths:
    """The existing files and folders that match an absolute ``pattern``. Folders that cannot be read count as empty."""
    left = most_entries

    def entries(folder: str) -> Iterator[os.DirEntry[str]]:
        nonlocal left
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    left -= 1
                    if left < 0:
                        return
                    yield entry
        except OSError:
            return

    def below(path: str, parts: Sequence[str]) -> Iterator[str]:
        while parts and not glob.has_magic(parts[0]):
            path, parts = os.path.join(path, parts[0]), parts[1:]  # noqa: PTH118 - for thousands of entries
        if not parts:
            if os.path.lexists(path):
                yield path
            return
        first, following = parts[0], parts[1:]
        if first == "**":
            yield from below(path, following)
        for entry in entries(path) if left >= 0 else ():
            if first == "**":
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry, follows=False):
                    yield from below(entry.path, parts)
                elif not following:
                    yield entry.path
            elif _name_pattern(first).fullmatch(entry.name) and (first[0] == "." or entry.name[0] != "."):
                if not following:
                    yield entry.path
                elif _is_folder(entry, follows=True):
                    yield from below(entry.path, following)

    paths = list(dict.fromkeys(below("/", _parts(pattern))))
    return FoundPaths(paths, left < 0)


def is_match(path: str, pattern: str) -> bool:
    """Whether an absolute path matches a pattern, as far as its text tells."""
    return _is_match(_parts(path), _parts(pattern))


def may_overlap(pattern: str, other: str) -> bool:
    """Whether a path may match both patterns."""
    if has_wildcards(pattern) and has_wildcards(other):
        # The folders before the first wildcard.
        mine, theirs = (re.split(r"[*?\[]", one, maxsplit=1)[0].rpartition("/")[0] + "/" for one in (pattern, other))
        return mine.startswith(theirs) or theirs.startswith(mine)
    return pattern == other or is_match(pattern, other) or is_match(other, pattern)


def has_wildcards(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _is_folder(entry: os.DirEntry[str], *, follows: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follows)
    except OSError:
        return False


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _is_match(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        return any(_is_match(path[start:], parts[1:]) for start in range(len(path) + 1))
    return bool(path) and _name_pattern(parts[0]).fullmatch(path[0]) is not None and _is_match(path[1:], parts[1:])


@lru_cache(maxsize=256)
def _name_pattern(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
