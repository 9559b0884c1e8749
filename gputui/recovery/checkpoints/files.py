"""Listing of checkpoint folders, and the identity of what is there: its content."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gputui.core.config import open_regular

CHECKSUM_SUFFIX = ".sha256"
# Files that each save writes; others, such as a tokenizer's, may be written at any time.
SAVED_SUFFIXES = (
    *(".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz"),
    *(".distcp", ".metadata", ".pkl", ".npz", ".npy"),
)
MAX_FILES = 10_000
# A smaller file is hashed as a whole (0.1 s). Of a larger one the ends, and short blocks between
# them, close enough that a layer which alone is trained has some.
WHOLE_BYTES = 64 << 20
END_BYTES, BLOCK_BYTES, BLOCKS_APART_BYTES = 64 << 10, 4 << 10, 256 << 10
MOST_BLOCKS = 4096
# Of a folder with more files, only one hash is kept.
MOST_NAMED = 256

# Names under which checkpoints are written before they are renamed: `checkpoint-40-tmp`,
# `x.orbax-checkpoint-tmp-17`, `x.pt.partial-123`, and the random names of Python's tempfile.
_UNFINISHED = re.compile(
    r"""(?:^|[._-])(?:tmp|incomplete)(?:[._-]|$)
    | \.(?:temp|part|partial|stale|lock)(?:[._-][^.]*)?$
    | ^tmp[a-z0-9_]{8}$
    | ~$
    | \.sha256$""",
    re.VERBOSE,
)


class FoundCheckpoint(NamedTuple):
    """A file or folder in a checkpoint folder. ``stamp`` changes whenever it is written;
    ``content`` identifies it, and is "" until `identified` has read it."""

    path: str
    stamp: str
    size_bytes: int | None
    modified_ns: int
    content: str = ""


def is_unfinished(name: str) -> bool:
    return _UNFINISHED.search(name) is not None


def list_checkpoints(directory: Path, pattern: str) -> list[FoundCheckpoint]:
    """Checkpoints that match a glob relative to the directory, except unfinished files, newest
    first. Empty if there is no directory. Raises OSError if it cannot be read."""
    try:
        os.scandir(directory).close()
        paths = list(directory.glob(pattern))
    except (FileNotFoundError, NotADirectoryError, ValueError, NotImplementedError):
        return []  # nothing is there, or the pattern is invalid
    files = []
    for path in paths:
        parts = path.relative_to(directory).parts
        # A name that is not UTF-8 cannot be stored and shown.
        is_text = str(path).encode("utf-8", "ignore") == os.fsencode(path)
        if not path.name.startswith(".") and not any(map(is_unfinished, parts)) and is_text:
            file = measured(path)
            files += [] if file is None else [file]
    # A link to another one of them, such as ``latest``, is no separate checkpoint.
    links = {file.path for file in files if Path(file.path).is_symlink()}
    real = {os.path.realpath(file.path) for file in files if file.path not in links}
    files = [each for each in files if each.path not in links or os.path.realpath(each.path) not in real]
    return sorted(files, key=lambda file: (file.modified_ns, file.path), reverse=True)


def measured(path: Path) -> FoundCheckpoint | None:
    """Stamp, size and last change of a file, or of the files in a folder. None if it is neither,
    missing or unreadable. A link counts as what it leads to."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return FoundCheckpoint(str(path), _stamp(status), status.st_size, status.st_mtime_ns)
        if not stat.S_ISDIR(status.st_mode):
            return None
        files = {entry: entry.stat() for entry in files_of(path)}
    except OSError:
        return None  # scripts delete their old checkpoints
    saved = {entry: files[entry] for entry in _saved(list(files))}
    stamps = (f"{entry.relative_to(path)} {_stamp(status)}" for entry, status in saved.items())
    return FoundCheckpoint(
        str(path),
        _digest("\n".join(stamps).encode()),
        sum(each.st_size for each in files.values()),
        max((each.st_mtime_ns for each in saved.values()), default=status.st_mtime_ns),
    )


def identified(file: FoundCheckpoint, known: Mapping[str, tuple[str, str]]) -> FoundCheckpoint | None:
    """The file with its content, read unless ``known`` has it (stamp and content by path); None if
    it is gone. One that cannot be read now is known by its stamp."""
    stamp, content = known.get(file.path, ("", ""))
    if stamp != file.stamp:
        try:
            content = content_of(Path(file.path))
        except FileNotFoundError:
            return None
        except OSError:
            content = f"unread {file.stamp}"
    return file._replace(content=content)


def content_of(path: Path) -> str:
    """The identity of a checkpoint: size and hash, of a folder a line a file. Raises OSError."""
    if not path.is_dir():
        return _content_of_file(path)
    files = _saved(files_of(path))
    text = "\n".join(f"{str(file.relative_to(path))!r} {_content_of_file(file)}" for file in files)
    return text if len(files) <= MOST_NAMED else f"{len(files)} files {_digest(text.encode())}"


def is_part_of(content: str, whole: str) -> bool:
    """Whether a folder has some of the files of another content and no other; False if either has
    too many to name."""
    return set(content.splitlines()) < set(whole.splitlines())


def kept_files(content: str, before: str) -> set[str]:
    """The lines of a folder's files that stayed when others were rewritten; empty if all were."""
    now, then = set(content.splitlines()), set(before.splitlines())
    return now & then if now - then else set()


def files_of(path: Path) -> list[Path]:
    """The regular files below a folder. Raises OSError if not all can be seen, or if it has too
    many for a checkpoint."""

    def fail(error: OSError) -> None:
        raise error

    found: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=fail):
        folders.sort()
        found += [entry for name in sorted(names) if (entry := Path(folder, name)).is_file()]
        if len(found) > MAX_FILES:
            raise OSError(f"holds more than {MAX_FILES} files")
    return found


def _saved(files: list[Path]) -> list[Path]:
    suffixes = (*SAVED_SUFFIXES, "trainer_state.json")
    return [entry for entry in files if entry.name.endswith(suffixes)] or files


def _content_of_file(path: Path) -> str:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            return f"{size} {_digest(file.read(WHOLE_BYTES))}"
        blocks = [os.pread(file.fileno(), END_BYTES, place) for place in (0, size - END_BYTES)]
        count = min(MOST_BLOCKS, size // BLOCKS_APART_BYTES)
        places = (size * number // count for number in range(1, count))
        blocks += [os.pread(file.fileno(), BLOCK_BYTES, place) for place in places]
    return f"{size} {_digest(b''.join(blocks))}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
