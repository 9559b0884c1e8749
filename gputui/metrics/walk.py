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
    walk = _Walk(most_entries)
    paths = list(dict.fromkeys(walk.below("/", _parts(pattern))))
    return FoundPaths(paths, walk.left < 0)


def is_match(path: str, pattern: str) -> bool:
    """Whether an absolute path matches a pattern, as far as its text tells."""
    return _is_match(_parts(path), _parts(pattern))


def may_overlap(pattern: str, other: str) -> bool:
    """Whether a path may match both patterns."""
    if pattern == other:
        return True
    if not has_wildcards(pattern):
        return has_wildcards(other) and is_match(pattern, other)
    if not has_wildcards(other):
        return is_match(other, pattern)
    mine, theirs = _literal_start(pattern), _literal_start(other)
    return mine.startswith(theirs) or theirs.startswith(mine)


def has_wildcards(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


class _Walk:
    """``left`` is the number of entries that may still be looked at; negative once there were more."""

    def __init__(self, most_entries: int) -> None:
        self.left = most_entries

    def below(self, folder: str, parts: Sequence[str]) -> Iterator[str]:
        path, parts_left = folder, list(parts)
        while parts_left and not glob.has_magic(parts_left[0]):
            path = os.path.join(path, parts_left.pop(0))  # noqa: PTH118 - for thousands of entries
        if not parts_left:
            if os.path.lexists(path):
                yield path
            return
        first, following = parts_left[0], parts_left[1:]
        if first == "**":
            yield from self.below(path, following)
        for entry in self._entries(path):
            if first == "**":
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry, follows=False):
                    yield from self.below(entry.path, parts_left)
                elif not following:
                    yield entry.path
            elif _name_pattern(first).fullmatch(entry.name) and (first[0] == "." or entry.name[0] != "."):
                if not following:
                    yield entry.path
                elif _is_folder(entry, follows=True):
                    yield from self.below(entry.path, following)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        if self.left < 0:
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.left -= 1
                    if self.left < 0:
                        return
                    yield entry
        except OSError:
            return


def _is_folder(entry: os.DirEntry[str], *, follows: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follows)
    except OSError:
        return False


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _literal_start(pattern: str) -> str:
    """The folders before the first wildcard."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0] + "/"


def _is_match(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        return any(_is_match(path[start:], parts[1:]) for start in range(len(path) + 1))
    return bool(path) and _name_pattern(parts[0]).fullmatch(path[0]) is not None and _is_match(path[1:], parts[1:])


@lru_cache(maxsize=256)
def _name_pattern(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
