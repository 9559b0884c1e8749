"""Listing of checkpoint folders: what lies there, how large, and when it was written. Standard
library only, for any Python from 3.9 on: also on targets."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

CHECKSUM_SUFFIX = ".sha256"
# Files that each save writes; others, such as a tokenizer's, may be written at any time.
SAVED_SUFFIXES = (
    ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz", ".distcp", ".metadata", ".pkl", ".npz", ".npy",
)  # fmt: skip
# With the record of the step that each save of the Hugging Face Trainer writes.
_SAVED_ENDINGS = (*SAVED_SUFFIXES, "trainer_state.json")
MAX_FILES = 10_000  # sharded checkpoints have hundreds; a folder of data has more

# Names under which checkpoints are written before they are renamed: `checkpoint-40-tmp`,
# `x.orbax-checkpoint-tmp-17`, `x.pt.partial-123`, and the random names of Python's tempfile; and the
# names of checksum files, which are no checkpoints either.
_UNFINISHED = re.compile(
    r"""(?:^|[._-])(?:tmp|incomplete)(?:[._-]|$)
    | \.(?:temp|part|partial|stale|lock)(?:[._-][^.]*)?$
    | ^tmp[a-z0-9_]{8}$
    | ~$
    | \.sha256$""",
    re.VERBOSE,
)


class FoundCheckpoint(NamedTuple):
    """A file or folder in a checkpoint folder.

    Attributes:
        stamp: changes whenever it is written.
        modified_ns: the last change.
        content: identifies what is saved, in the forms of `gputui.recovery.checkpoints.content`; "" until it is read.
    """

    path: str
    stamp: str
    size_bytes: int | None
    modified_ns: int
    content: str = ""


def is_unfinished(name: str) -> bool:
    """Return whether a name is not, or not yet, that of a checkpoint."""
    return _UNFINISHED.search(name) is not None


def list_checkpoints(directory: Path, pattern: str) -> list[FoundCheckpoint]:
    """The checkpoints in a directory, newest first; none if there is no directory. Raises OSError if it cannot be
    read.

    Args:
        pattern: a glob relative to the directory. Unfinished files do not count.
    """
    try:
        # For the errors: glob finds nothing in a directory that cannot be read.
        os.scandir(directory).close()
        paths = list(directory.glob(pattern))
    except (FileNotFoundError, NotADirectoryError, ValueError, NotImplementedError):
        return []  # nothing is there, or the pattern is invalid
    checkpoints = []
    for path in paths:
        file = measured(path) if _is_candidate(path, directory) else None
        if file is not None:
            checkpoints.append(file)
    return sorted(_without_links(checkpoints), key=lambda file: (file.modified_ns, file.path), reverse=True)


def _is_candidate(path: Path, directory: Path) -> bool:
    """Return whether a path is named as a checkpoint: neither hidden nor, with the folders in
    ``directory`` above it, unfinished."""
    # A name that is not UTF-8 cannot be stored and shown.
    is_text = str(path).encode("utf-8", "ignore") == os.fsencode(path)
    is_hidden = path.name.startswith(".")
    return is_text and not is_hidden and not any(map(is_unfinished, path.relative_to(directory).parts))


def _without_links(files: list[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The files without the links to another one of them, such as ``latest``, which are no separate
    checkpoints."""
    links = {file.path for file in files if Path(file.path).is_symlink()}
    real = {os.path.realpath(file.path) for file in files if file.path not in links}
    return [file for file in files if file.path not in links or os.path.realpath(file.path) not in real]


def measured(path: Path) -> FoundCheckpoint | None:
    """Stamp, size and last change of a file, or of the files in a folder; a link counts as what it leads to.

    Returns:
        None if it is neither, missing or unreadable.
    """
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return FoundCheckpoint(str(path), _stamp(status), status.st_size, status.st_mtime_ns)
        if not stat.S_ISDIR(status.st_mode):
            return None
        files = {entry: entry.stat() for entry in files_of(path)}
    except OSError:
        return None  # scripts delete their old checkpoints
    saved = {entry: files[entry] for entry in saved_files(list(files))}
    stamps = (f"{entry.relative_to(path)} {_stamp(status)}" for entry, status in saved.items())
    return FoundCheckpoint(
        path=str(path),
        stamp=digest("\n".join(stamps).encode()),
        size_bytes=sum(status_of_file.st_size for status_of_file in files.values()),
        modified_ns=max((status_of_file.st_mtime_ns for status_of_file in saved.values()), default=status.st_mtime_ns),
    )


def files_of(path: Path) -> list[Path]:
    """The regular files below a folder. Raises OSError if not all can be seen, or if it has too
    many for a checkpoint."""

    def fail(error: OSError) -> None:
        raise error

    paths: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=fail):
        folders.sort()
        paths += [entry for name in sorted(names) if (entry := Path(folder, name)).is_file()]
        if len(paths) > MAX_FILES:
            raise OSError(f"holds more than {MAX_FILES} files")
    return paths


def saved_files(files: list[Path]) -> list[Path]:
    """Of the files in a folder, those that each save writes by their names; all if none is known as
    such."""
    saved = [entry for entry in files if entry.name.endswith(_SAVED_ENDINGS)]
    if saved:
        return saved
    return files


def digest(data: bytes) -> str:
    """A hash of data, as a short text."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
