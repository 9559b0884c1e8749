"""What a checkpoint's content tells without loading it, for a pickle can run any program: the steps that it names, and
whether it is a copy of another."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path

from gputui.regular_files import open_regular

MOST_BYTES = 32 << 20
# The archives of torch.save end with the checksums of all that they hold.
COMPARED_BYTES = 64 << 10

# What scripts call the step in what they save: a short string of a pickle (its opcodes SHORT_BINUNICODE and BINUNICODE;
# pickletools.py of Python), its place in the memo, and an integer of one, two or four bytes.
_NAMED_STEP = re.compile(
    rb"(?:\x8c.|X.\0\0\0)(?:global_step|global_iter|iter_num|iteration|iter|step|steps|num_updates)"
    rb"(?:q.|r.{4}|\x94)?(?:K(.)|M(..)|J(....))",
    re.DOTALL,
)


def steps_inside(path: Path) -> frozenset[int]:
    """Every number that a file of ``torch.save`` calls a step, the states of an optimizer included; none where it is of
    another kind, damaged or cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [one for one in archive.infolist() if one.filename.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1 or names[0].file_size > MOST_BYTES:
                return frozenset()
            data = archive.read(names[0])
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        return frozenset()
    found = (b"".join(match.groups(b"")) for match in _NAMED_STEP.finditer(data))
    return frozenset(int.from_bytes(raw, "little", signed=len(raw) == 4) for raw in found)


def has_same_content(one: Path, other: Path) -> bool:
    """Whether two files of one size begin and end alike; False for folders and for what cannot be read."""
    try:
        with open_regular(one) as first, open_regular(other) as second:
            if first.read(COMPARED_BYTES) != second.read(COMPARED_BYTES):
                return False
            for file in (first, second):
                file.seek(max(0, os.fstat(file.fileno()).st_size - COMPARED_BYTES))
            return first.read(COMPARED_BYTES) == second.read(COMPARED_BYTES)
    except OSError:
        return False
