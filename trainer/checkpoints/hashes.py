"""The SHA-256 beside a checkpoint, in the format of sha256sum, and whether the checkpoint still has it.

The first line is the checkpoint's own. A sharded checkpoint's file goes on with a line for every shard, so that
``sha256sum --check`` looks at all of it. While a checkpoint is being replaced by another one of the same name, both
hashes are listed: whenever the process is killed, the file that lies there has one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from trainer.checkpoints import names
from trainer.errors import CheckpointError

# With a star where sha256sum was given --binary.
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")

# A file's name, relative to the checkpoint's folder, and its SHA-256.
Entry = tuple[str, str]


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Replaces the hash file of `path` in one go. Raises OSError."""
    final = names.hash_file(path)
    temporary = names.temporary_file(final)
    try:
        with temporary.open("wb") as file:
            file.write("".join(f"{digest}  {name}\n" for name, digest in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> list[Entry]:
    """What is recorded beside `path`, its own hashes first. Raises CheckpointError if that cannot be used."""
    if not path.name:
        raise CheckpointError(f"checkpoint {path} cannot be used: that is no file")
    try:
        lines = names.hash_file(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        missing = error.filename if path.exists() else "the file"
        raise CheckpointError(f"checkpoint {path} cannot be used: {missing} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from None
    matches = [_LINE.fullmatch(line) for line in lines]
    if not matches or None in matches:
        raise CheckpointError(f"checkpoint {path} cannot be used: {names.hash_file(path)} is damaged")
    entries = [(match[2], match[1]) for match in matches if match]
    # A checkpoint that a person renamed together with its hash file is still the same.
    former_name = entries[0][0]
    return [(path.name if name == former_name else name, digest) for name, digest in entries]


def verify(path: Path) -> None:
    """Raises CheckpointError unless the checkpoint and all its shards are there and have their recorded SHA-256."""
    allowed: dict[str, set[str]] = {}
    for name, digest in read(path):
        allowed.setdefault(name, set()).add(digest)
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
