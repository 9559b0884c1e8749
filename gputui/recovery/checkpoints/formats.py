"""Validation of checkpoints, without PyTorch and without unpickling.

A file is valid only after its content was checked: against the SHA-256 beside it (``<name>.sha256``, in the format of
sha256sum; other files listed there belong to the checkpoint), else by the CRCs of its ZIP members (``torch.save``) or
of its gzip stream, else by the layout of a safetensors file. A folder has in addition what its format writes last.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import lzma
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import open_regular
from gputui.recovery.checkpoints.files import CHECKSUM_SUFFIX, TooManyFilesError, files_of, is_unfinished
from gputui.runs.checkpoint_names import step_in_name

PIECE_BYTES = 1 << 20
# Room for tens of thousands of parts; a safetensors header at most (its own limit); an index at most.
MAX_CHECKSUMS_BYTES, MAX_HEADER_BYTES, MAX_INDEX_BYTES = 4 << 20, 100_000_000, 256 << 20

_ZIP_MAGIC, _GZIP_MAGIC = b"PK\x03\x04", b"\x1f\x8b"
# In a checkpoint folder, files with these suffixes contain weights and must each be valid.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz")
_CHECKSUM_LINE = re.compile(r"\\?([0-9a-fA-F]{64})(?: [ *](.+))?")
# File names in the index of torch.distributed.checkpoint, a pickle that contains text verbatim.
_DISTRIBUTED_NAME = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")
_TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
# Bytes per element; safetensors of other types are not compared with their shape.
_ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class CheckpointInfo(Struct, frozen=True):
    """A checkpoint and the result of its validation. ``why`` says what was checked, or what is wrong; ``seen`` is its
    place in the order of the run's checkpoints.

    ``is_unknown``: its format cannot be checked. ``is_unreadable``: it could not be read now, with ``is_missing``
    because it does not exist. ``is_replaced``: something else is there now.
    """

    path: Path
    step: int | None
    valid: bool
    why: str
    size_bytes: int | None = None
    seen: int = 0
    is_unknown: bool = False
    is_unreadable: bool = False
    is_missing: bool = False
    is_replaced: bool = False


class Checksums(Struct, frozen=True):
    """Accepted digests: any of ``own`` for the checkpoint, and for each part (by path relative to the checkpoint's
    folder) any of its digests. A file has two while it is being replaced."""

    own: frozenset[str]
    parts: Mapping[str, frozenset[str]]


class InvalidError(Exception):
    """The checkpoint is damaged or incomplete; the message completes "the checkpoint …"."""


class _UnknownFormatError(InvalidError):
    """The format cannot be checked."""


def validate(path: Path) -> CheckpointInfo:
    """Validate a checkpoint, which is a file or a folder. Never raises."""
    info = CheckpointInfo(path, step_in_name(path, path.parent.parent), False, "")
    try:
        status = path.stat()
        info = replace(info, size_bytes=status.st_size)
        why = _check_folder(path) if stat.S_ISDIR(status.st_mode) else _check_file(path)
    except (InvalidError, TooManyFilesError) as error:
        return replace(info, why=str(error), is_unknown=isinstance(error, _UnknownFormatError))
    except OSError as error:
        why, is_missing = f"cannot be read: {error.strerror or error}", isinstance(error, FileNotFoundError)
        return replace(info, why=why, is_unreadable=True, is_missing=is_missing)
    return replace(info, valid=True, why=why)


# --- files ------------------------------------------------------------------------------------------------------------


def _check_file(path: Path) -> str:
    """Check a file and return what was checked. Raises InvalidError or OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise InvalidError("is empty")
        recorded = checksums_of(path)
        if recorded is not None:
            return _check_hashes(path, file, recorded)
        magic = file.read(len(_ZIP_MAGIC))
        file.seek(0)
        if magic == _ZIP_MAGIC:
            return _check_zip(file)
        if magic.startswith(_GZIP_MAGIC):
            return _check_gzip(file)
        if path.suffix == ".safetensors":
            return _check_safetensors(file, size)
    raise _UnknownFormatError(
        f"has no {CHECKSUM_SUFFIX} file beside it and a format that cannot be checked (none of ZIP, gzip, safetensors)"
    )


def _check_hashes(path: Path, file: BufferedReader, recorded: Checksums) -> str:
    if hashlib.file_digest(file, "sha256").hexdigest() not in recorded.own:
        raise InvalidError(f"does not match the SHA-256 in {path.name}{CHECKSUM_SUFFIX}")
    for name, digests in recorded.parts.items():
        part = path.parent / name
        # A link may lead outside of the checkpoint's folder.
        if not part.resolve().is_relative_to(path.parent.resolve()):
            raise InvalidError(f"lists {name} in its {CHECKSUM_SUFFIX} file, which is outside of its folder")
        try:
            with open_regular(part) as opened:
                matches = hashlib.file_digest(opened, "sha256").hexdigest() in digests
        except FileNotFoundError:
            raise InvalidError(f"lacks its part {name}") from None
        if not matches:
            raise InvalidError(f"has a part that does not match its SHA-256: {name}")
    parts = len(recorded.parts)
    return f"matches its SHA-256, and so do its {parts} parts" if parts else "matches its SHA-256"


def checksums_of(path: Path) -> Checksums | None:
    """The hashes beside a file; None if there are none. The first line belongs to the checkpoint whatever its name, so
    that both can be renamed together. Raises InvalidError or OSError."""
    try:
        with open_regular(path.with_name(path.name + CHECKSUM_SUFFIX)) as file:
            data = file.read(MAX_CHECKSUMS_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_CHECKSUMS_BYTES:
        raise InvalidError(f"has a {CHECKSUM_SUFFIX} file beside it that is too large to be one")
    lines = [line.rstrip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    matches = [_CHECKSUM_LINE.fullmatch(line) for line in lines]
    if not matches or matches[0] is None:
        raise InvalidError(f"has a {CHECKSUM_SUFFIX} file beside it that holds no SHA-256")
    own_names = (None, path.name, matches[0][2])
    own: set[str] = set()
    parts: dict[str, set[str]] = {}
    for match in matches:
        if match is None:
            raise InvalidError(f"has a {CHECKSUM_SUFFIX} file beside it that is damaged")
        if match[2] in own_names:
            own.add(match[1].lower())
            continue
        part = PurePosixPath(match[2])
        if part.is_absolute() or ".." in part.parts or not part.parts:
            raise InvalidError(f"lists {match[2]} in its {CHECKSUM_SUFFIX} file, which is outside of its folder")
        parts.setdefault(str(part), set()).add(match[1].lower())
    return Checksums(frozenset(own), {part: frozenset(digests) for part, digests in parts.items()})


def _check_zip(file: BufferedReader) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            count, damaged = len(members), archive.testzip()
    # Besides damage: an unknown compression, an encrypted member, offsets outside of the file.
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, OverflowError) as error:
        raise InvalidError(f"is damaged: {error or 'it is cut short'}") from None
    except OSError as error:
        # Not of the disk: a damaged bzip2 stream has no number, a negative offset this one.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise InvalidError(f"is damaged: {error}") from None
    # PyTorch does not read what it takes for a folder, and returns memory that was never written.
    folders = (each for each in members if each.filename.endswith("/") or each.external_attr & 0x10)
    if any(each.file_size for each in folders):
        raise InvalidError("is damaged: a member with content is marked as a folder")
    if damaged is not None or not count:
        raise InvalidError(f"is damaged: {f'the CRC of {damaged} is wrong' if damaged else 'it has no content'}")
    return f"the CRC of {'its member' if count == 1 else f'each of its {count} members'} was checked"


def _check_gzip(file: BufferedReader) -> str:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            is_empty = True
            while stream.read(PIECE_BYTES):
                is_empty = False
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidError(f"is damaged: {error}") from None
    if is_empty:
        raise InvalidError("is damaged: it unpacks to nothing")
    return "the CRC of its gzip stream was checked"


def _check_safetensors(file: IO[bytes], size: int) -> str:
    """Compare the header with the file: eight bytes with its length, the header as JSON, then the tensors without gaps
    (github.com/huggingface/safetensors, "Format")."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise InvalidError("is cut short: its header is not all there")
    try:
        end = 8 + length + _data_end(json.loads(file.read(length)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InvalidError("is damaged: its header cannot be read") from None
    if end != size:
        raise InvalidError(f"is damaged: its header describes {end} bytes, it has {size}")
    return "its header describes the file exactly (the format has no checksum)"


def _data_end(header: dict[str, Any]) -> int:
    """The end of the data, relative to the header's end. Raises ValueError, TypeError or KeyError."""
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    end = 0
    for entry in sorted(entries, key=lambda entry: tuple(entry["data_offsets"])):
        start, stop = entry["data_offsets"]
        if not isinstance(start, int) or not isinstance(stop, int) or start != end or stop < start:
            raise ValueError("offsets")
        element = _ELEMENT_BYTES.get(entry["dtype"])
        if element is not None and stop - start != element * math.prod(entry["shape"]):
            raise ValueError("a shape that does not fit its offsets")
        end = stop
    return end


# --- folders ----------------------------------------------------------------------------------------------------------


def _check_folder(path: Path) -> str:
    """Check a folder: every file of weights must be valid, and it must have what its format needs."""
    contents = [entry for entry in files_of(path) if not entry.name.endswith(CHECKSUM_SUFFIX)]
    if not contents:
        raise InvalidError("is an empty folder")
    unfinished = next((entry for entry in contents if is_unfinished(entry.name)), None)
    if unfinished is not None:
        raise InvalidError(f"is still being written, or its writing was cut short: it holds {unfinished.name}")
    _check_indexes(path, contents)
    _check_trainer(path, {entry.name for entry in contents if entry.parent == path})
    for folder in sorted({entry.parent for entry in contents if entry.name.endswith("_model_states.pt")}):
        _check_deepspeed(folder)
    for entry in contents:
        try:
            if entry.name.endswith(_WEIGHTS) or checksums_of(entry) is not None:
                _check_file(entry)
            elif entry.suffix == ".distcp" and not entry.stat().st_size:
                raise InvalidError("is empty")
        except InvalidError as error:
            raise type(error)(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(contents)} files was checked" if len(contents) != 1 else "its file was checked"


def _check_indexes(path: Path, files: Sequence[Path]) -> None:
    """Compare the files with what ``.metadata`` and ``*.index.json`` name."""
    present = set(files)
    for folder in sorted({entry.parent for entry in files if entry.suffix == ".distcp"}):
        if folder / ".metadata" not in present or not (folder / ".metadata").stat().st_size:
            raise InvalidError("is a distributed checkpoint without its .metadata")
    for entry in files:
        if entry.name == ".metadata":
            named = {match.decode() for match in _DISTRIBUTED_NAME.findall(_content(entry))}
        elif entry.name.endswith(".index.json"):
            try:
                named = {str(name) for name in json.loads(_content(entry))["weight_map"].values()}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise InvalidError(f"has an index that cannot be read: {entry.name}") from None
        else:
            continue
        missing = sorted(name for name in named if entry.parent / name not in present)
        if missing:
            raise InvalidError(f"lacks {missing[0]}, which {entry.relative_to(path)} names")


def _check_trainer(path: Path, names: set[str]) -> None:
    """A folder of the Hugging Face Trainer has its trainer_state.json, which is written last. Accelerate's, of the same
    name, has random states."""
    is_trainer = _TRAINER_FOLDER.fullmatch(path.name) and names & {"config.json", "adapter_config.json"}
    is_saved = any(name.endswith(_WEIGHTS) for name in names)
    if not is_trainer or any(name.startswith("random_states") for name in names):
        return
    if not is_saved or "trainer_state.json" not in names:
        what = "trainer_state.json" if is_saved else "weights"
        raise InvalidError(f"lacks its {what}: its save was cut short")


def _check_deepspeed(folder: Path) -> None:
    """A folder of DeepSpeed is complete once ``latest`` beside it names it, or a later one."""
    step = step_in_name(folder)
    try:
        latest = _content(folder.parent / "latest").decode("utf-8", "replace").strip()
    except FileNotFoundError:
        others = [each for each in folder.parent.glob("*/*_model_states.pt") if each.parent != folder]
        # Scripts may save without it, but then no earlier one has it either.
        if others or step is None:
            return
        raise InvalidError("is not named by a file latest: its save was cut short") from None
    named = step_in_name(Path(latest))
    if latest != folder.name and step is not None and named is not None and named < step:
        raise InvalidError(f"is newer than {latest}, which latest names: its save was cut short")


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise InvalidError(f"has an index that is too large to be one: {path.name}")
    return data
