"""Completeness of checkpoint folders: whether all files named by their indexes exist. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from gputui.core.config import open_regular

# Files that each save writes; others, such as a tokenizer's or an evaluation's, may be written once or at any time.
SAVED_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz", ".distcp", ".metadata", ".pkl", ".npz", ".npy")
MAX_FILES = 10_000
MAX_INDEX_BYTES = 256 << 20

# File names of torch.distributed.checkpoint. The index is a pickle, which contains text verbatim.
_DISTRIBUTED_NAME = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")


class IncompleteError(Exception):
    """The folder is incomplete; the message completes "the checkpoint …"."""


def files_of(path: Path) -> list[Path]:
    """The regular files below a folder. Raises IncompleteError if there are too many to be a checkpoint."""
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            entry = Path(folder) / name
            if entry.is_file():
                found.append(entry)
            if len(found) > MAX_FILES:
                raise IncompleteError(f"holds more than {MAX_FILES} files")
    return found


def check_complete(path: Path, files: Sequence[Path]) -> None:
    """Compare the files with what ``.metadata`` and ``*.index.json`` name. Raises IncompleteError or OSError."""
    present = set(files)
    for folder in sorted({entry.parent for entry in files if entry.suffix == ".distcp"}):
        if folder / ".metadata" not in present or not (folder / ".metadata").stat().st_size:
            raise IncompleteError("is a distributed checkpoint without its .metadata")
    for entry in files:
        if entry.name == ".metadata":
            named = {match.decode() for match in _DISTRIBUTED_NAME.findall(_content(entry))}
        elif entry.name.endswith(".index.json"):
            named = _files_of_index(entry)
        else:
            continue
        missing = sorted(name for name in named if entry.parent / name not in present)
        if missing:
            raise IncompleteError(f"lacks {missing[0]}, which {entry.relative_to(path)} names")


def _files_of_index(path: Path) -> set[str]:
    """The file names in the ``weight_map`` of a sharded Hugging Face model."""
    try:
        weights = json.loads(_content(path))["weight_map"]
        return {str(name) for name in weights.values()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise IncompleteError(f"has an index that cannot be read: {path.name}") from None


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise IncompleteError(f"has an index that is too large to be one: {path.name}")
    return data
