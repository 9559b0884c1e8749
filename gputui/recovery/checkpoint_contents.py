"""Facts from a checkpoint's content: the steps in it, and whether it is a copy. Nothing is unpickled, because a pickle
can run any code."""

from __future__ import annotations

import lzma
import os
import re
import zipfile
import zlib
from pathlib import Path

from gputui.core.config import open_regular

MOST_BYTES = 32 << 20
# The archives of torch.save end with the checksums of all that they hold.
COMPARED_BYTES = 64 << 10

# A step in a pickle: its usual names as SHORT_BINUNICODE or BINUNICODE (see pickletools.py), an optional memo opcode,
# and an integer of one, two or four bytes.
_NAMED_STEP = re.compile(
    rb"(?:\x8c.|X.\0\0\0)(?:global_step|global_iter|iter_num|iteration|iter|step|steps|num_updates)"
    rb"(?:q.|r.{4}|\x94)?(?:K(.)|M(..)|J(....))",
    re.DOTALL,
)


def steps_inside(path: Path) -> frozenset[int]:
    """All numbers with a step's name in a file of ``torch.save``, including optimizer states; none if the file has
    another format or cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [member for member in archive.infolist() if member.filename.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1 or names[0].file_size > MOST_BYTES:
                return frozenset()
            data = archive.read(names[0])
    except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError):
        return frozenset()
    numbers = (b"".join(match.groups(b"")) for match in _NAMED_STEP.finditer(data))
    return frozenset(int.from_bytes(raw, "little", signed=len(raw) == 4) for raw in numbers)


def has_same_content(path: Path, other: Path) -> bool:
    """Whether two files of equal size have equal heads and tails; False for folders and unreadable files."""
    try:
        with open_regular(path) as first, open_regular(other) as second:
            if first.read(COMPARED_BYTES) != second.read(COMPARED_BYTES):
                return False
            for file in (first, second):
                file.seek(max(0, os.fstat(file.fileno()).st_size - COMPARED_BYTES))
            return first.read(COMPARED_BYTES) == second.read(COMPARED_BYTES)
    except OSError:
        return False
