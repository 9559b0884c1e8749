"""Token counts that are found by reading all data once, and cached in .token_counts.json beside it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

COUNTS_FILE = ".token_counts.json"


class TokenCount(NamedTuple):
    """How many tokens a file or row group has, and the largest of them."""

    tokens: int
    largest: int


def cached_token_counts(
    folder: Path, keys: Sequence[str], count: Callable[[list[int]], Iterable[TokenCount]]
) -> list[TokenCount]:
    """The count of each key, from the folder's cache where it has it.

    A key names a source and its version, so a changed file is counted again. `count` gets the numbers of the keys that
    are not in the cache and returns their counts in that order. Entries of other keys are dropped from the cache.
    """
    path = folder / COUNTS_FILE
    cached = _read(path)
    missing = [number for number, key in enumerate(keys) if key not in cached]
    if missing:
        cached |= zip((keys[number] for number in missing), count(missing), strict=True)
        _write(path, {key: cached[key] for key in keys})
    return [cached[key] for key in keys]


def _read(path: Path) -> dict[str, TokenCount]:
    try:
        content = json.loads(path.read_bytes())
        return {str(key): TokenCount(int(tokens), int(largest)) for key, (tokens, largest) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # absent or damaged: everything is counted again


def _write(path: Path, counts: dict[str, TokenCount]) -> None:
    """Write the cache atomically. Ranks may do this concurrently: they write the same counts."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(counts))
        temporary.replace(path)
    except OSError:  # the folder is read-only: the next start counts again
        with contextlib.suppress(OSError):
            temporary.unlink()
