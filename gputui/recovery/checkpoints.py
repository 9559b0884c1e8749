"""Which checkpoints of a run are whole, without PyTorch and without ever unpickling anything.

A checkpoint counts as valid only after its content was checked: against the SHA-256 beside it (``<name>.sha256``, in
the format of sha256sum), else by the CRC of every member of its ZIP archive (what ``torch.save`` writes), else by the
layout of a safetensors file. Files are read in pieces, whatever their size.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gputui.recovery import zip_archive

PIECE_BYTES = 1 << 20
MAX_DIRECTORY_FILES = 10_000
# The format's own limit on its header: github.com/huggingface/safetensors, "Format".
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000

CHECKSUM_SUFFIX = ".sha256"
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".stale", ".lock", "~", CHECKSUM_SUFFIX)
_HASH = re.compile(r"^\\?([0-9a-fA-F]{64})(?: [ *]|$)")
_DIGITS = re.compile(r"\d+")
# In a folder, files with these endings hold weights and must each be valid; others are only required to be readable.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


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


def survey(directory: Path, pattern: str, *, wanted: int = 1) -> list[CheckpointInfo]:
    """Checkpoints from the newest back to the ``wanted``-th valid one, the invalid ones among them with the reason."""
    found: list[CheckpointInfo] = []
    for path in candidates(directory, pattern):
        found.append(validate(path))
        if sum(info.valid for info in found) >= wanted:
            break
    return found


def candidates(directory: Path, pattern: str) -> list[Path]:
    """What the pattern (a glob relative to the directory) finds, unfinished files aside, the newest first.

    Newest is the highest step in the name; names without a number come after all others, by their time.
    """
    dated = []
    try:
        for path in directory.glob(pattern):
            name = path.name
            if name.startswith(".") or name.endswith(_UNFINISHED):
                continue
            try:
                status = path.stat()
            except OSError:
                continue  # gone meanwhile: scripts delete their old ones
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                step = step_of(path, directory)
                dated.append((step is not None, step or 0, status.st_mtime_ns, path))
    except (OSError, ValueError, NotImplementedError):
        return []  # no such directory, or a pattern that is none: nothing is found
    return [entry[-1] for entry in sorted(dated, reverse=True)]


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
        recorded = _recorded_hash(path)
        if recorded is not None:
            digest = hashlib.sha256()
            for piece in _pieces(file):
                digest.update(piece)
            if digest.hexdigest() != recorded:
                raise _InvalidError(f"does not match the SHA-256 in {path.name}{CHECKSUM_SUFFIX}")
            return "matches its SHA-256"
        if file.read(len(zip_archive.MAGIC)) == zip_archive.MAGIC:
            return _check_zip(file)
        file.seek(0)
        if path.suffix == ".safetensors":
            return _check_safetensors(file, size)
    raise _InvalidError(
        f"has no {CHECKSUM_SUFFIX} file beside it and a format that cannot be checked (neither ZIP nor safetensors)"
    )


def _check_folder(path: Path) -> str:
    """A folder: every file of weights must be valid, and a distributed checkpoint must have its index."""
    files = [entry for entry in _walk(path) if not entry.name.endswith(CHECKSUM_SUFFIX)]
    if not files:
        raise _InvalidError("is an empty folder")
    unfinished = next((entry for entry in files if entry.name.endswith(_UNFINISHED)), None)
    if unfinished is not None:
        raise _InvalidError(f"is still being written, or its writing was cut short: it holds {unfinished.name}")
    shards = [entry for entry in files if entry.suffix == ".distcp"]
    if shards and not any(entry.name == ".metadata" and entry.stat().st_size for entry in files):
        raise _InvalidError("is a distributed checkpoint without its .metadata")
    for entry in files:
        try:
            if entry.suffix in _WEIGHTS or _recorded_hash(entry) is not None:
                _check_file(entry)
            elif entry.suffix == ".distcp" and not entry.stat().st_size:
                raise _InvalidError("is empty")
        except _InvalidError as error:
            raise _InvalidError(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(files)} files was checked" if len(files) != 1 else "its file was checked"


def _walk(path: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            entry = Path(folder) / name
            if entry.is_file():
                found.append(entry)
            if len(found) > MAX_DIRECTORY_FILES:
                raise _InvalidError(f"holds more than {MAX_DIRECTORY_FILES} files")
    return found


def _recorded_hash(path: Path) -> str | None:
    """The SHA-256 recorded beside a file, None where there is none. Raises _InvalidError where it cannot be used."""
    beside = path.with_name(path.name + CHECKSUM_SUFFIX)
    try:
        with _open(beside) as file:
            text = file.read(4096).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    match = _HASH.match(text)
    if match is None:
        raise _InvalidError(f"has a {CHECKSUM_SUFFIX} file beside it that holds no SHA-256")
    return match[1].lower()


def _check_zip(file: IO[bytes]) -> str:
    try:
        count = zip_archive.check(file)
    except zip_archive.DamagedError as error:
        raise _InvalidError(f"is damaged: {error}") from None
    return f"the CRC of each of its {count} members was checked"


def _check_safetensors(file: IO[bytes], size: int) -> str:
    """Header and offsets must describe the file exactly; the format has no checksum of its own."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, MAX_SAFETENSORS_HEADER_BYTES):
        raise _InvalidError("is cut short: its header is not all there")
    try:
        header = json.loads(file.read(length))
        end = _data_end(header)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _InvalidError("is damaged: its header cannot be read") from None
    if 8 + length + end != size:
        raise _InvalidError(f"is damaged: its header describes {8 + length + end} bytes, it has {size}")
    return "its header describes the file exactly (the format has no checksum)"


def _data_end(header: dict[str, Any]) -> int:
    """Where the data of a safetensors file end, counted from behind the header; they must have no gaps."""
    spans = sorted(tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
    end = 0
    for start, stop in spans:
        if not isinstance(start, int) or not isinstance(stop, int) or start != end or stop < start:
            raise ValueError("offsets")
        end = stop
    return end


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
