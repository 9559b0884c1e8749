"""Whether a folder was saved as a whole. Its files may each be sound where the save of the folder was cut short: some
are missing, or are still those of the save before. An attempt that went on after a save had made it; so all this
concerns only what an attempt wrote last."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.recovery import checkpoint_folders

# Files that a training writes with each save; others, such as a tokenizer's, may be copied once.
_SAVED = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz", ".distcp", ".metadata", ".pkl", ".npz", ".npy")
# File times are those of the kernel's last tick.
TICK_NS = 10_000_000


class SavedFile(NamedTuple):
    """A file of a folder. ``shape`` is its path with all numbers alike, which is the same in each save."""

    name: str
    shape: str
    modified_ns: int


class OlderFolder(NamedTuple):
    """A folder that was saved before; ``is_of_attempt``: by the same attempt, so by as many ranks."""

    parts: Sequence[SavedFile]
    is_of_attempt: bool


def parts_of(path: Path) -> list[SavedFile]:
    """What a training writes into a folder with each save. Raises OSError."""
    found = []
    try:
        files = checkpoint_folders.files_of(path)
    except checkpoint_folders.IncompleteError:
        return []
    for file in files:
        if file.name.endswith(_SAVED):
            name = str(file.relative_to(path))
            found.append(SavedFile(name, shape(name), file.stat().st_mtime_ns))
    return found


def shape(name: str) -> str:
    """A name with all numbers alike."""
    return re.sub(r"\d+", "#", name)


def of_two_saves(parts: Sequence[SavedFile], before_ns: int, is_kept: Callable[[int], bool]) -> str | None:
    """The oldest file of the save before, which was over at ``before_ns``, where others were written since; None if
    there is none. ``is_kept`` tells of a file's time whether it was older already in that save: such files are not
    written each time."""
    if all(part.modified_ns <= before_ns for part in parts):
        return None
    left = [part for part in parts if part.modified_ns <= before_ns and not is_kept(part.modified_ns)]
    return min(left, key=lambda part: part.modified_ns).name if left else None


def with_old_index(parts: Sequence[SavedFile]) -> str | None:
    """A shard of a distributed checkpoint that is newer than its ``.metadata``, which is written last, or None."""
    indexes = {Path(part.name).parent: part.modified_ns for part in parts if Path(part.name).name == ".metadata"}
    for part in parts:
        written_ns = indexes.get(Path(part.name).parent)
        if part.name.endswith(".distcp") and written_ns is not None and part.modified_ns > written_ns + TICK_NS:
            return part.name
    return None


def lacking(parts: Sequence[SavedFile], older: Sequence[OlderFolder]) -> str | None:
    """The name of a file as all folders that were saved before have it, and this one has not; None where there is none.
    Another attempt may have had other ranks, after which files are numbered."""
    counts = Counter(part.shape for part in parts)
    theirs = [Counter(part.shape for part in folder.parts) for folder in older]
    for part in older[0].parts if older else ():
        is_ranked = "#" in part.shape
        wanted = [
            (has[part.shape] if folder.is_of_attempt else 1)
            for folder, has in zip(older, theirs, strict=True)
            if folder.is_of_attempt or not is_ranked
        ]
        is_in_all = all(has[part.shape] for has in theirs)
        if is_in_all and wanted and counts[part.shape] < min(wanted):
            return part.name
    return None
