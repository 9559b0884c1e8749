"""The content of a checkpoint: a text that identifies what is saved, whatever its path.

It is compared, and stored in the ledger. Its forms:

- of a file, ``SIZE HASH``. Of a file above WHOLE_BYTES, only samples are hashed;
- of a folder, a line ``'NAME' SIZE HASH`` for each of its `saved_files`, so "" if it is empty;
- of a folder with more than MOST_NAMED of them, ``COUNT files HASH``;
- of what cannot be read at the moment, ``unread STAMP``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gputui.core.files import open_regular
from gputui.runs.checkpoint_files import FoundCheckpoint, digest, files_of, saved_files

# A smaller file is hashed as a whole (0.1 s). Of a larger one the ends, and short blocks between
# them, close enough that a layer which alone is trained has some.
WHOLE_BYTES = 64 << 20
END_BYTES = 64 << 10  # headers and indices of all formats
BLOCK_BYTES = 4 << 10  # a page of the disk, which is read as a whole
BLOCKS_APART_BYTES = 256 << 10  # a tensor that differs is seldom smaller
MOST_BLOCKS = 4096  # 16 MiB read of the largest file, less than a second
MOST_NAMED = 256  # a row of the store holds that many names


def identified(file: FoundCheckpoint, contents: Mapping[str, tuple[str, str]]) -> FoundCheckpoint | None:
    """The file with its content; None if it is gone. One that cannot be read now is known by its stamp.

    ``contents`` has the stamp and the content of files that need not be read again, by path.
    """
    stamp, content = contents.get(file.path, ("", ""))
    if stamp != file.stamp:
        try:
            content = content_of(Path(file.path))
        except FileNotFoundError:
            return None
        except OSError:
            content = f"unread {file.stamp}"
    return file._replace(content=content)


def content_of(path: Path) -> str:
    """The content of a checkpoint that can be read. Raises OSError."""
    if not path.is_dir():
        return _size_and_hash(path)
    files = saved_files(files_of(path))
    lines = "\n".join(f"{str(file.relative_to(path))!r} {_size_and_hash(file)}" for file in files)
    if len(files) <= MOST_NAMED:
        return lines
    return f"{len(files)} files {digest(lines.encode())}"


def is_part_of(content: str, whole: str) -> bool:
    """Return whether a folder has some of the files of another content and no other; False if
    either has too many to name."""
    return set(content.splitlines()) < set(whole.splitlines())


def kept_files(content: str, before: str) -> set[str]:
    """The quoted names of a folder's files that stayed when others were rewritten; empty if all
    were."""
    now = set(content.splitlines())
    then = set(before.splitlines())
    if now <= then:
        return set()
    return {line.rsplit(" ", 2)[0] for line in now & then}


def _size_and_hash(path: Path) -> str:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        hashed = file.read(WHOLE_BYTES) if size <= WHOLE_BYTES else _samples(file.fileno(), size)
    return f"{size} {digest(hashed)}"


def _samples(descriptor: int, size: int) -> bytes:
    """Both ends of a large file, and blocks at equal distances between them."""
    count = min(MOST_BLOCKS, size // BLOCKS_APART_BYTES)
    samples = [os.pread(descriptor, END_BYTES, offset) for offset in (0, size - END_BYTES)]
    samples += [os.pread(descriptor, BLOCK_BYTES, size * number // count) for number in range(1, count)]
    return b"".join(samples)
