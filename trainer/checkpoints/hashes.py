"""Hash files beside checkpoints, in the format of sha256sum, and verification.

The first line is the hash of the checkpoint's file; a sharded checkpoint has a line for every shard, too, so that
``sha256sum --check`` verifies all of it. While a checkpoint replaces another one of the same name, both hashes are
listed, so that the file has one of them whenever the process is killed. Every listed shard must exist, also one that
only the other version needs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainer.checkpoints import durable, names
from trainer.errors import CheckpointError

# The star is that of sha256sum --binary.
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


class HashEntry(NamedTuple):
    """A line of a hash file; `name` is relative to the checkpoint's folder."""

    name: str
    sha256: str


def write(path: Path, entries: Iterable[HashEntry]) -> None:
    """Replace the hash file of `path` atomically. Raises OSError."""
    lines = "".join(f"{entry.sha256}  {entry.name}\n" for entry in entries)
    durable.replace(names.hash_file(path), lines.encode())


def read(path: Path) -> list[HashEntry]:
    """The entries of the hash file of `path`, its own first. Raises CheckpointError if it is missing or damaged."""
    if not path.name:
        raise CheckpointError(f"checkpoint {path} cannot be used: that is no file")
    try:
        lines = names.hash_file(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        if not path.exists():
            raise CheckpointError(f"checkpoint {path} cannot be used: the file is missing") from None
        raise CheckpointError(f"checkpoint {path} cannot be used: {error.filename} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from None
    matches = [_LINE.fullmatch(line) for line in lines]
    if not matches or None in matches:
        raise CheckpointError(f"checkpoint {path} cannot be used: {names.hash_file(path)} is damaged")
    entries = [HashEntry(match[2], match[1]) for match in matches if match]
    # A checkpoint that was renamed together with its hash file is still valid.
    former_name = entries[0].name
    return [entry._replace(name=path.name) if entry.name == former_name else entry for entry in entries]


def verify(path: Path) -> None:
    """Raise CheckpointError unless the checkpoint and all its shards exist and have their recorded SHA-256."""
    allowed: dict[str, set[str]] = {}
    for entry in read(path):
        allowed.setdefault(entry.name, set()).add(entry.sha256)
    for name, digests in allowed.items():
        try:
            with (path.parent / name).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError as error:
            raise CheckpointError(f"checkpoint {path} cannot be used: {error.filename} is missing") from None
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from None
        if actual not in digests:
            where = "" if name == path.name else f" in {name}"
            raise CheckpointError(f"checkpoint {path} is corrupt: sha256 mismatch{where}")


def is_valid(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True
