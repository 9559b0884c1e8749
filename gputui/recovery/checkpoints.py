"""Validation of checkpoints, without PyTorch and without unpickling.

A checkpoint is valid only after its content was checked: against the SHA-256 beside it (``<name>.sha256``, in the
format of sha256sum; other files listed there belong to the checkpoint), else by the CRCs of its ZIP members
(``torch.save``) or of its gzip stream, else by the layout of a safetensors file. Files of any size are read in pieces.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import re
import stat
import zipfile
import zlib
from io import BufferedReader
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import open_regular
from gputui.recovery import checkpoint_folders, safetensors_file
from gputui.recovery.checksums import CHECKSUM_SUFFIX, ChecksumError, Checksums, read_checksums
from gputui.recovery.ledger_inputs import FoundCheckpoint
from gputui.runs.checkpoint_names import step_in_name

PIECE_BYTES = 1 << 20
# In a folder with more, only the newest count.
MOST_FOUND = 1000

_ZIP_MAGIC = b"PK\x03\x04"
GZIP_MAGIC = b"\x1f\x8b"
# Names under which checkpoints are written before they are renamed: `checkpoint-40-tmp`, `x.orbax-checkpoint-tmp-17`,
# `x.pt.partial-123`, and the random names of Python's tempfile.
_UNFINISHED = re.compile(
    r"""(?:^|[._-])(?:tmp|incomplete)(?:[._-]|$)
    | \.(?:temp|part|partial|stale|lock)(?:[._-][^.]*)?$
    | ^tmp[a-z0-9_]{8}$
    | ~$""",
    re.VERBOSE,
)
# In a checkpoint folder, files with these suffixes contain weights and must each be valid.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz")


class CheckpointInfo(Struct, frozen=True):
    """A checkpoint and the result of its validation. ``why`` says what was checked, or what is wrong.

    ``is_unknown``: its format cannot be checked. ``is_unreadable``: it could not be read now, with ``is_missing``
    because it does not exist. ``is_replaced``: something else is there now.
    """

    path: Path
    step: int | None
    valid: bool
    why: str
    size_bytes: int | None = None
    modified_at: float | None = None
    is_unknown: bool = False
    is_unreadable: bool = False
    is_missing: bool = False
    is_replaced: bool = False


class _InvalidError(Exception):
    """The checkpoint is damaged or incomplete; the message says why."""


class _UnknownFormatError(_InvalidError):
    """The format cannot be checked."""


def _is_unfinished(name: str) -> bool:
    return _UNFINISHED.search(name) is not None or name.endswith(CHECKSUM_SUFFIX)


def look_in(directory: Path, pattern: str, most: int = MOST_FOUND) -> list[FoundCheckpoint]:
    """Checkpoints that match the pattern (a glob relative to the directory) except unfinished files, newest first, at
    most ``most``. Empty if the directory does not exist. Raises OSError if the directory cannot be read."""
    try:
        os.scandir(directory).close()
    except (FileNotFoundError, NotADirectoryError):
        return []
    files = []
    try:
        for path in directory.glob(pattern):
            parts = path.relative_to(directory).parts
            if not path.name.startswith(".") and not any(map(_is_unfinished, parts)) and _is_text(path):
                file = measured(path)
                files += [] if file is None else [file]
    except (ValueError, NotImplementedError):
        return []  # an invalid pattern
    # A link to another one of them, such as ``latest``, is no separate checkpoint.
    links = {file.path for file in files if Path(file.path).is_symlink()}
    real = {os.path.realpath(file.path) for file in files if file.path not in links} if links else set()
    files = [file for file in files if file.path not in links or os.path.realpath(file.path) not in real]
    files.sort(key=lambda file: (file.modified_ns, file.path), reverse=True)
    return files[:most]


def measured(path: Path) -> FoundCheckpoint | None:
    """Size and last change of a file, or of the files in a folder that each save writes: an evaluation may add others
    much later. None if it is neither, or missing. A link counts as what it leads to."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return FoundCheckpoint(str(path), status.st_mtime_ns, status.st_size, status.st_ctime_ns)
        if not stat.S_ISDIR(status.st_mode):
            return None
        contents = [(entry.name, entry.stat()) for entry in checkpoint_folders.files_of(path)]
    except checkpoint_folders.IncompleteError:
        return FoundCheckpoint(str(path), status.st_mtime_ns, None, status.st_ctime_ns)
    except OSError:
        return None  # scripts delete their old checkpoints
    files = [entry for _, entry in contents]
    saved = [entry for name, entry in contents if name.endswith(checkpoint_folders.SAVED_SUFFIXES)]
    with_all_files = (_newest_ns(status, *files), sum(entry.st_size for entry in files))
    dated = saved or [status, *files]
    changed_ns = max(entry.st_ctime_ns for entry in dated)
    size_bytes = sum(entry.st_size for entry in saved or files)
    return FoundCheckpoint(str(path), _newest_ns(*dated), size_bytes, changed_ns, with_all_files)


def _newest_ns(*statuses: os.stat_result) -> int:
    return max(status.st_mtime_ns for status in statuses)


def _is_text(path: Path) -> bool:
    """Whether the name is valid UTF-8, so that it can be stored and shown."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def validate(path: Path) -> CheckpointInfo:
    """Validate a checkpoint, which is a file or a folder. Never raises."""
    info = CheckpointInfo(path, step_in_name(path, path.parent.parent), False, "")
    try:
        status = path.stat()
        info = replace(info, size_bytes=status.st_size, modified_at=status.st_mtime)
        why = _check_folder(path) if stat.S_ISDIR(status.st_mode) else _check_file(path)
    except _InvalidError as error:
        return replace(info, why=str(error), is_unknown=isinstance(error, _UnknownFormatError))
    except OSError as error:
        why, is_missing = f"cannot be read: {error.strerror or error}", isinstance(error, FileNotFoundError)
        return replace(info, why=why, is_unreadable=True, is_missing=is_missing)
    return replace(info, valid=True, why=why)


def _check_file(path: Path) -> str:
    """Check a file and return what was checked. Raises _InvalidError or OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise _InvalidError("is empty")
        recorded = _recorded(path)
        if recorded is not None:
            return _check_hashes(path, file, recorded)
        magic = file.read(len(_ZIP_MAGIC))
        if magic == _ZIP_MAGIC:
            return _check_zip(file)
        file.seek(0)
        if magic.startswith(GZIP_MAGIC):
            return _check_gzip(file)
        if path.suffix == ".safetensors":
            return _check_safetensors(file, size)
    raise _UnknownFormatError(
        f"has no {CHECKSUM_SUFFIX} file beside it and a format that cannot be checked (none of ZIP, gzip, safetensors)"
    )


def _check_hashes(path: Path, file: BufferedReader, recorded: Checksums) -> str:
    if hashlib.file_digest(file, "sha256").hexdigest() not in recorded.own:
        raise _InvalidError(f"does not match the SHA-256 in {path.name}{CHECKSUM_SUFFIX}")
    for name, digests in recorded.parts.items():
        part = path.parent / name
        # A link may lead outside of the checkpoint's folder.
        if not part.resolve().is_relative_to(path.parent.resolve()):
            raise _InvalidError(f"lists {name} in its {CHECKSUM_SUFFIX} file, which is outside of its folder")
        try:
            with open_regular(part) as opened:
                matches = hashlib.file_digest(opened, "sha256").hexdigest() in digests
        except FileNotFoundError:
            raise _InvalidError(f"lacks its part {name}") from None
        if not matches:
            raise _InvalidError(f"has a part that does not match its SHA-256: {name}")
    parts = len(recorded.parts)
    return f"matches its SHA-256, and so do its {parts} parts" if parts else "matches its SHA-256"


def _check_folder(path: Path) -> str:
    """Check a folder: every file of weights must be valid, and the files in its indexes must exist."""
    try:
        files = checkpoint_folders.files_of(path)
        contents = [entry for entry in files if not entry.name.endswith(CHECKSUM_SUFFIX)]
        if not contents:
            raise _InvalidError("is an empty folder")
        unfinished = next((entry for entry in contents if _is_unfinished(entry.name)), None)
        if unfinished is not None:
            raise _InvalidError(f"is still being written, or its writing was cut short: it holds {unfinished.name}")
        checkpoint_folders.check_complete(path, contents)
    except checkpoint_folders.IncompleteError as error:
        raise _InvalidError(str(error)) from None
    for entry in contents:
        try:
            if entry.name.endswith(_WEIGHTS) or _recorded(entry) is not None:
                _check_file(entry)
            elif entry.suffix == ".distcp" and not entry.stat().st_size:
                raise _InvalidError("is empty")
        except _InvalidError as error:
            raise type(error)(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(contents)} files was checked" if len(contents) != 1 else "its file was checked"


def _recorded(path: Path) -> Checksums | None:
    """The hashes beside a file; None if there are none."""
    try:
        with open_regular(path.with_name(path.name + CHECKSUM_SUFFIX)) as file:
            return read_checksums(file, path.name)
    except FileNotFoundError:
        return None
    except ChecksumError as error:
        raise _InvalidError(str(error)) from None


def _check_zip(file: BufferedReader) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            count, damaged = len(members), archive.testzip()
    # Besides damage: an unknown compression, an encrypted member, offsets outside of the file.
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, OverflowError) as error:
        raise _InvalidError(f"is damaged: {error or 'it is cut short'}") from None
    except OSError as error:
        # Not of the disk: a damaged bzip2 stream has no number, a negative offset this one.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _InvalidError(f"is damaged: {error}") from None
    # PyTorch does not read what it takes for a folder, and returns memory that was never written.
    folders = (each for each in members if each.filename.endswith("/") or each.external_attr & 0x10)
    if any(each.file_size for each in folders):
        raise _InvalidError("is damaged: a member with content is marked as a folder")
    if damaged is not None or not count:
        raise _InvalidError(f"is damaged: {f'the CRC of {damaged} is wrong' if damaged else 'it has no content'}")
    return f"the CRC of {'its member' if count == 1 else f'each of its {count} members'} was checked"


def _check_gzip(file: BufferedReader) -> str:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            is_empty = True
            while stream.read(PIECE_BYTES):
                is_empty = False
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _InvalidError(f"is damaged: {error}") from None
    if is_empty:
        raise _InvalidError("is damaged: it unpacks to nothing")
    return "the CRC of its gzip stream was checked"


def _check_safetensors(file: BufferedReader, size: int) -> str:
    try:
        safetensors_file.check(file, size)
    except safetensors_file.DamagedHeaderError as error:
        raise _InvalidError(str(error)) from None
    return "its header describes the file exactly (the format has no checksum)"
