"""Which checkpoints of a run are whole, without PyTorch and without ever unpickling anything.

A checkpoint counts as valid only after its content was checked: against the SHA-256 beside it (``<name>.sha256``, in
the format of sha256sum; other files that it lists belong to the checkpoint), else by the CRC of every member of its
ZIP archive (what ``torch.save`` writes), of the stream of a gzip file, else by the layout of a safetensors file. Files
are read in pieces, whatever their size.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gputui.recovery import checkpoint_folders, safetensors_file, zip_archive
from gputui.recovery.checksums import CHECKSUM_SUFFIX, ChecksumError, Checksums, read_checksums

PIECE_BYTES = 1 << 20
# Beyond so many damaged ones in a row the folder is taken to hold none that is whole.
MAX_DAMAGED = 1000

GZIP_MAGIC = b"\x1f\x8b"
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".stale", ".lock", "~", CHECKSUM_SUFFIX)
_DIGITS = re.compile(r"\d+")
# In a folder, files with these endings hold weights and must each be valid; others are only required to be readable.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint and what was found out about it. ``why`` says what was checked, or what is wrong with it."""

    path: Path
    step: int | None
    valid: bool
    why: str
    size_bytes: int | None = None
    modified_at: float | None = None


class _InvalidError(Exception):
    """The checkpoint is not whole; the text says why."""


def newest_valid(directory: Path, pattern: str) -> CheckpointInfo | None:
    """The newest checkpoint that is whole, or None."""
    return next((info for info in survey(directory, pattern) if info.valid), None)


def survey(directory: Path, pattern: str, *, wanted: int = 1, before: int | None = None) -> list[CheckpointInfo]:
    """Checkpoints from the newest back to the ``wanted``-th valid one, the invalid ones among them with the reason.

    Those of step ``before`` and later are passed over unread.
    """
    found: list[CheckpointInfo] = []
    damaged = 0
    for path in _newest_first(directory, pattern):
        step = step_of(path, directory)
        if before is not None and step is not None and step >= before:
            continue
        found.append(validate(path))
        damaged = 0 if found[-1].valid else damaged + 1
        if damaged > MAX_DAMAGED or sum(info.valid for info in found) >= wanted:
            break
    return found


def candidates(directory: Path, pattern: str) -> list[Path]:
    """What the pattern (a glob relative to the directory) finds, unfinished files aside, the newest first.

    Newest is the highest step in the name; names without a number come after all others, by their time.
    """
    return list(_newest_first(directory, pattern))


def _newest_first(directory: Path, pattern: str) -> Iterator[Path]:
    """The candidates one by one: of thousands only those that are asked for are looked at."""
    by_step: dict[int | None, list[Path]] = {}
    try:
        for path in directory.glob(pattern):
            if not path.name.startswith(".") and not path.name.endswith(_UNFINISHED) and _is_text(path):
                by_step.setdefault(step_of(path, directory), []).append(path)
    except (OSError, ValueError, NotImplementedError):
        return  # no such directory, or a pattern that is none: nothing is found
    for step in sorted(by_step, key=lambda step: (step is not None, step or 0), reverse=True):
        dated = []
        for path in by_step[step]:
            try:
                status = path.stat()
            except OSError:
                continue  # gone meanwhile: scripts delete their old ones
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                dated.append((status.st_mtime_ns, path))
        yield from (path for _, path in sorted(dated, reverse=True))


def _is_text(path: Path) -> bool:
    """Whether the name can be stored and shown: one that is not UTF-8 cannot."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def step_of(path: Path, directory: Path | None = None) -> int | None:
    """The step that a checkpoint's name tells: the last number in its name, else in those of its folders."""
    parts = (
        path.relative_to(directory).parts if directory is not None and path.is_relative_to(directory) else (path.name,)
    )
    for part in reversed(parts):
        stem = part.rsplit(".", 1)[0] if "." in part else part
        numbers = _DIGITS.findall(stem)
        if numbers and len(numbers[-1]) <= 18:
            return int(numbers[-1])
    return None


def validate(path: Path) -> CheckpointInfo:
    """Check one checkpoint, a file or a folder. Never raises."""
    size: int | None = None
    modified: float | None = None
    try:
        status = path.stat()
        size, modified = status.st_size, status.st_mtime
        why = _check_folder(path) if stat.S_ISDIR(status.st_mode) else _check_file(path)
        valid = True
    except _InvalidError as error:
        why, valid = str(error), False
    except OSError as error:
        why, valid = f"cannot be read: {error.strerror or error}", False
    return CheckpointInfo(path, step_of(path, path.parent.parent), valid, why, size, modified)


def _check_file(path: Path) -> str:
    """What was checked. Raises _InvalidError or OSError."""
    with _open(path) as file:
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
    raise _InvalidError(
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
            with _open(part) as opened:
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
            raise _InvalidError(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(held)} files was checked" if len(held) != 1 else "its file was checked"


def _recorded(path: Path) -> Checksums | None:
    """The hashes recorded beside a file, None where there are none."""
    try:
        with _open(path.with_name(path.name + CHECKSUM_SUFFIX)) as file:
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
    except zip_archive.DamagedError as error:
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
    except safetensors_file.DamagedError as error:
        raise _InvalidError(str(error)) from None
    return "its header describes the file exactly (the format has no checksum)"


def _open(path: Path) -> IO[bytes]:
    """A regular file for reading; anything else (a FIFO would wait for ever) is refused with OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
