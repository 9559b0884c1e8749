"""The checksum file beside a checkpoint, in the format of sha256sum: its own SHA-256 and those of its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import IO

from msgspec import Struct

CHECKSUM_SUFFIX = ".sha256"
# A line has about 150 bytes, so this is room for tens of thousands of parts.
MAX_BYTES = 4 << 20

_LINE = re.compile(r"\\?([0-9a-fA-F]{64})(?: [ *](.+))?")


class ChecksumError(Exception):
    """The checksum file cannot be used; the message completes "the checkpoint …"."""


class Checksums(Struct, frozen=True):
    """Accepted digests: any of ``own`` for the checkpoint, and for each part (by path relative to the checkpoint's
    folder) any of its digests. A file has two while it is being replaced."""

    own: frozenset[str]
    parts: Mapping[str, frozenset[str]]


def read_checksums(file: IO[bytes], name: str) -> Checksums:
    """Read the checksum file of the checkpoint ``name``. Raises ChecksumError.

    The first line belongs to the checkpoint whatever its name, so that a checkpoint can be renamed together with its
    checksum file. A part outside of the checkpoint's folder is refused.
    """
    data = file.read(MAX_BYTES + 1)
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > MAX_BYTES:
        raise ChecksumError(f"has a {CHECKSUM_SUFFIX} file beside it that is too large to be one")
    matches = [_LINE.fullmatch(line.rstrip()) for line in lines if line.strip()]
    if not matches or matches[0] is None:
        raise ChecksumError(f"has a {CHECKSUM_SUFFIX} file beside it that holds no SHA-256")
    former_name = matches[0][2]
    own: set[str] = set()
    parts: dict[str, set[str]] = {}
    for match in matches:
        if match is None:
            raise ChecksumError(f"has a {CHECKSUM_SUFFIX} file beside it that is damaged")
        listed = match[2]
        if listed in (None, name, former_name):
            own.add(match[1].lower())
            continue
        path = PurePosixPath(listed)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ChecksumError(f"lists {listed} in its {CHECKSUM_SUFFIX} file, which is outside of its folder")
        parts.setdefault(str(path), set()).add(match[1].lower())
    return Checksums(frozenset(own), {part: frozenset(digests) for part, digests in parts.items()})
