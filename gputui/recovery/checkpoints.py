"""Which checkpoints of a run are whole, without PyTorch and without ever unpickling anything.

A checkpoint counts as valid only after its content was checked: against the SHA-256 beside it (``<name>.sha256``, in
the format of sha256sum; other files that it lists belong to the checkpoint), else by the CRC of every member of its
ZIP archive (what ``torch.save`` writes), of the stream of a gzip file, else by the layout of a safetensors file. Files
are read in pieces, at any size.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from gputui.recovery import checkpoint_folders, safetensors_file, zip_archive
from gputui.recovery.checkpoint_ledger import FoundCheckpoint
from gputui.recovery.checksums import CHECKSUM_SUFFIX, ChecksumError, Checksums, read_checksums
from gputui.regular_files import open_regular
from gputui.runs.checkpoint_names import step_in_name

PIECE_BYTES = 1 << 20
# Of a folder with more, the newest count.
MOST_FOUND = 1000

GZIP_MAGIC = b"\x1f\x8b"
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".stale", ".lock", "~", CHECKSUM_SUFFIX)
# In a folder, files with these endings hold weights and must each be valid; others are only required to be readable.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint and what was found out about it. ``why`` says what was checked, or what is wrong with it.

    ``is_unknown``: its format cannot be checked; ``is_unreadable``: it could not be read now; ``is_missing``: because
    it is not there.
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


class _InvalidError(Exception):
    """The checkpoint is not whole; the text says why."""


class _UnknownFormatError(_InvalidError):
    """Nothing tells whether the checkpoint is whole."""


def look_in(directory: Path, pattern: str, most: int = MOST_FOUND) -> list[FoundCheckpoint]:
    """What the pattern (a glob relative to the directory) finds, unfinished files aside, the newest first, at most
    ``most``. Nothing if there is no such directory.

    Raises OSError if the directory cannot be read.
    """
    try:
        os.scandir(directory).close()
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    try:
        for path in directory.glob(pattern):
            if not path.name.startswith(".") and not path.name.endswith(_UNFINISHED) and _is_text(path):
                one = measured(path)
                found += [] if one is None else [one]
    except (ValueError, NotImplementedError):
        return []  # a pattern that is none
    found = _without_links(found)
    found.sort(key=lambda one: (one.modified_ns, one.path), reverse=True)
    return found[:most]


def _without_links(found: list[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """A link to another one of them (``latest``) is no separate checkpoint."""
    links = {one.path for one in found if Path(one.path).is_symlink()}
    real = {os.path.realpath(one.path) for one in found if one.path not in links} if links else set()
    return [one for one in found if one.path not in links or os.path.realpath(one.path) not in real]


def measured(path: Path) -> FoundCheckpoint | None:
    """Size and newest change of a file, or of a folder with all that is in it; None if it is neither, or gone."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return FoundCheckpoint(str(path), status.st_mtime_ns, status.st_size, status.st_ctime_ns)
        if not stat.S_ISDIR(status.st_mode):
            return None
        held = [entry.stat() for entry in checkpoint_folders.files_of(path)]
    except checkpoint_folders.IncompleteError:
        return FoundCheckpoint(str(path), status.st_mtime_ns, None)
    except OSError:
        return None  # gone meanwhile: scripts delete their old ones
    newest = max((each.st_mtime_ns for each in held), default=0)
    return FoundCheckpoint(str(path), max(status.st_mtime_ns, newest), sum(each.st_size for each in held))


def _is_text(path: Path) -> bool:
    """Whether the name can be stored and shown: one that is not UTF-8 cannot."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def validate(path: Path) -> CheckpointInfo:
    """Check one checkpoint, a file or a folder. Never raises."""
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
    """What was checked. Raises _InvalidError or OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise _InvalidError("is empty")
        recorded = _recorded(path)
        if recorded is not None:
            return _check_hashes(path, file, recorded)
        magic = file.read(len(zip_archive.MAGIC))
        if magic == zip_archive.MAGIC:
            return _check_zip(file)
        file.seek(0)
        if magic.startswith(GZIP_MAGIC):
            return _check_gzip(file)
        if path.suffix == ".safetensors":
            return _check_safetensors(file, size)
    raise _UnknownFormatError(
        f"has no {CHECKSUM_SUFFIX} file beside it and a format that cannot be checked (none of ZIP, gzip, safetensors)"
    )


def _check_hashes(path: Path, file: IO[bytes], recorded: Checksums) -> str:
    if _digest(file) not in recorded.own:
        raise _InvalidError(f"does not match the SHA-256 in {path.name}{CHECKSUM_SUFFIX}")
    for name, digests in recorded.parts.items():
        part = path.parent / name
        # A link may lead anywhere; what is outside of the checkpoint's folder is no part of it.
        if not part.resolve().is_relative_to(path.parent.resolve()):
            raise _InvalidError(f"lists {name} in its {CHECKSUM_SUFFIX} file, which is outside of its folder")
        try:
            with open_regular(part) as opened:
                matches = _digest(opened) in digests
        except FileNotFoundError:
            raise _InvalidError(f"lacks its part {name}") from None
        if not matches:
            raise _InvalidError(f"has a part that does not match its SHA-256: {name}")
    parts = len(recorded.parts)
    return f"matches its SHA-256, and so do its {parts} parts" if parts else "matches its SHA-256"


def _check_folder(path: Path) -> str:
    """A folder: every file of weights must be valid, and what its indexes name must be there."""
    try:
        files = checkpoint_folders.files_of(path)
        held = [entry for entry in files if not entry.name.endswith(CHECKSUM_SUFFIX)]
        if not held:
            raise _InvalidError("is an empty folder")
        unfinished = next((entry for entry in held if entry.name.endswith(_UNFINISHED)), None)
        if unfinished is not None:
            raise _InvalidError(f"is still being written, or its writing was cut short: it holds {unfinished.name}")
        checkpoint_folders.check_complete(path, held)
    except checkpoint_folders.IncompleteError as error:
        raise _InvalidError(str(error)) from None
    for entry in held:
        try:
            if entry.name.endswith(_WEIGHTS) or _recorded(entry) is not None:
                _check_file(entry)
            elif entry.suffix == ".distcp" and not entry.stat().st_size:
                raise _InvalidError("is empty")
        except _InvalidError as error:
            raise type(error)(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(held)} files was checked" if len(held) != 1 else "its file was checked"


def _recorded(path: Path) -> Checksums | None:
    """The hashes recorded beside a file, None if there are none."""
    try:
        with open_regular(path.with_name(path.name + CHECKSUM_SUFFIX)) as file:
            return read_checksums(file, path.name)
    except FileNotFoundError:
        return None
    except ChecksumError as error:
        raise _InvalidError(str(error)) from None


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(file):
        digest.update(piece)
    return digest.hexdigest()


def _check_zip(file: IO[bytes]) -> str:
    try:
        count = zip_archive.check(file)
    except zip_archive.DamagedArchiveError as error:
        raise _InvalidError(f"is damaged: {error}") from None
    return f"the CRC of each of its {count} members was checked"


def _check_gzip(file: IO[bytes]) -> str:
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


def _check_safetensors(file: IO[bytes], size: int) -> str:
    try:
        safetensors_file.check(file, size)
    except safetensors_file.DamagedHeaderError as error:
        raise _InvalidError(str(error)) from None
    return "its header describes the file exactly (the format has no checksum)"


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
